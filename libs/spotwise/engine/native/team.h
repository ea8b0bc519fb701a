// A thread pool whose threads compute one operation together.
//
// The leader (the calling thread) offers pieces of work and takes part; helpers take pieces as they get a core. An operation
// ends when its pieces are done, without a barrier: a helper without a core delays no thread, so several workers can share
// cores (OpenMP's barriers wait for the slowest thread, and spin for milliseconds meanwhile). Helpers spin for some
// microseconds, since the next operation of a forward follows at once, and then sleep.
//
// Helpers compute in the leader's floating-point modes, so that a sum does not depend on who computes it.
//
// Invariant: one thread computes a piece; a helper reads an operation only while it holds a piece of it, and the operation
// cannot end before that piece is done.

#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "flushing.h"

namespace spotwise {

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

constexpr int kSpins = 1000;  // some 20 us

// Cores of the teams that the calling thread makes: a team's thread `i` keeps to the `i`-th of them, where there is one. The first is
// the leader's, which takes it by itself.
inline thread_local std::vector<int> own_cores;

// Without effect where the calling thread may not run there.
inline void keep_to(int core) {
#if defined(__linux__)
  cpu_set_t* cores = CPU_ALLOC(core + 1);
  if (cores == nullptr) return;
  const size_t size = CPU_ALLOC_SIZE(core + 1);
  CPU_ZERO_S(size, cores);
  CPU_SET_S(core, size, cores);
  sched_setaffinity(0, size, cores);
  CPU_FREE(cores);
#endif
}

class Team {
 public:
  explicit Team(int threads) : size_(threads) {
    for (int i = 1; i < threads; i++) {
      const int core = size_t(i) < own_cores.size() ? own_cores[i] : -1;
      helpers_.emplace_back([this, i, core] {
        if (core >= 0) keep_to(core);
        help(i);
      });
    }
  }

  ~Team() {
    stopping_.store(true, std::memory_order_release);
    offer(0);
    for (auto& helper : helpers_) helper.join();
  }

  int size() const { return size_; }

  // Computes pieces 0..count-1 by `body(piece, thread)`, and returns when all are done.
  template <class Body>
  void each(int64_t count, const Body& body) {
    for (int64_t first = 0; first < count; first += kMostPieces) {
      const int part = int(std::min<int64_t>(count - first, kMostPieces));
      each_of(part, [&](int piece, int thread) { body(first + piece, thread); });
    }
  }

 private:
  // One atomic word holds number, count of pieces and next piece, so that no helper mixes two operations.
  static constexpr int kBits = 20;
  static constexpr uint64_t kMask = (uint64_t(1) << kBits) - 1;
  // Of one operation: half of what its fields hold, since each thread that finds no piece left has taken one more.
  static constexpr int kMostPieces = 1 << (kBits - 1);
  static uint32_t number(uint64_t word) { return uint32_t(word >> (2 * kBits)); }

  template <class Body>
  void each_of(int count, const Body& body) {
    if (size_ == 1 || count <= 1) {
      for (int piece = 0; piece < count; piece++) body(piece, 0);
      return;
    }
    body_ = &body;
    call_ = [](const void* of, int piece, int thread) { (*static_cast<const Body*>(of))(piece, thread); };
    modes_ = float_modes();
    done_.store(0, std::memory_order_relaxed);
    offer(count);
    work(0);
    for (int i = 0; done_.load(std::memory_order_acquire) != count; i++) {
      if (i < kSpins) {
        relax();
      } else {
        std::this_thread::yield();
      }
    }
  }

  void offer(int count) {
    operation_++;
    offer_.store(uint64_t(operation_ & 0xffffff) << (2 * kBits) | uint64_t(count) << kBits, std::memory_order_seq_cst);
    if (sleeping_.load(std::memory_order_seq_cst)) {
      wake_.fetch_add(1, std::memory_order_seq_cst);
      wake_.notify_all();
    }
  }

  // Takes pieces of the current operation until there are none; returns the operation's number.
  uint32_t work(int thread) {
    for (;;) {
      const uint64_t word = offer_.fetch_add(1, std::memory_order_acq_rel);
      const uint64_t count = word >> kBits & kMask, piece = word & kMask;
      if (piece >= count) return number(word);
      if (thread) set_float_modes(modes_);
      call_(body_, int(piece), thread);
      done_.fetch_add(1, std::memory_order_release);
    }
  }

  void help(int thread) {
    uint32_t seen = 0;
    while (!stopping_.load(std::memory_order_acquire)) {
      if (wait_for_other_than(seen)) seen = work(thread);
    }
  }

  // Waits for another operation than `seen`; returns false after a wakeup without one.
  bool wait_for_other_than(uint32_t seen) {
    for (int i = 0; i < kSpins; i++) {
      if (number(offer_.load(std::memory_order_acquire)) != seen) return true;
      relax();
    }
    const uint32_t ticket = wake_.load(std::memory_order_seq_cst);
    sleeping_.fetch_add(1, std::memory_order_seq_cst);
    const bool is_there = number(offer_.load(std::memory_order_seq_cst)) != seen;
    if (!is_there) wake_.wait(ticket, std::memory_order_seq_cst);
    sleeping_.fetch_sub(1, std::memory_order_seq_cst);
    return is_there;
  }

  const int size_;
  std::vector<std::thread> helpers_;
  std::atomic<bool> stopping_{false};
  uint32_t operation_ = 0;
  uint32_t modes_ = 0;  // of the operation
  const void* body_ = nullptr;
  void (*call_)(const void*, int, int) = nullptr;
  alignas(64) std::atomic<uint64_t> offer_{0};
  alignas(64) std::atomic<int> done_{0};
  alignas(64) std::atomic<uint32_t> wake_{0};
  std::atomic<int> sleeping_{0};
};

}  // namespace spotwise

// Sets the cores of the teams that the calling thread makes from now on.
extern "C" __attribute__((used)) inline void sw_own_cores(const int* cores, int count) {
  spotwise::own_cores.assign(cores, cores + count);
}
