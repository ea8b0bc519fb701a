// How a thread treats numbers that are too small to be normal.

#pragma once

#include <cstdint>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace spotwise {

// The calling thread's rounding and flushing, as its register holds them.
inline uint32_t float_modes() {
#if defined(__SSE2__)
  return _mm_getcsr();
#else
  return 0;
#endif
}

inline void set_float_modes([[maybe_unused]] uint32_t modes) {
#if defined(__SSE2__)
  _mm_setcsr(modes);
#endif
}

// While it lives, the calling thread and what its team computes for it round to nearest, and count such numbers as zero, given and
// computed ones: so do the processor's bfloat16 instructions, whatever the thread has set.
class Flushing {
 public:
  Flushing() : before_(float_modes()) { set_float_modes(kFlushing); }
  ~Flushing() { set_float_modes(before_); }
  Flushing(const Flushing&) = delete;
  Flushing& operator=(const Flushing&) = delete;

 private:
  static constexpr uint32_t kFlushing = 0x1f80 | 0x8040;  // no exceptions; flush to zero, denormals are zero
  const uint32_t before_;
};

}  // namespace spotwise
