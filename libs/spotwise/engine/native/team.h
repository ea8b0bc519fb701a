// The threads that compute one operation together.
//
// Law: a team's threads stay for the life of the process. Whoever waits spins for some microseconds, because the next step of a
// forward comes at once, and then sleeps: another process may want the core (OpenMP's default spins for milliseconds; two
// workers on the same cores then take many times as long). Work is claimed piece by piece, so that a thread that lost its
// core holds up the others by one piece at most.

#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace spotwise {

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

constexpr int kSpins = 600;  // about 10 us

// Waits until `word` is no longer `old`.
inline void wait_changed(const std::atomic<uint32_t>& word, uint32_t old) {
  for (int i = 0; i < kSpins; i++) {
    if (word.load(std::memory_order_acquire) != old) return;
    relax();
  }
  word.wait(old, std::memory_order_acquire);
}

class Team {
 public:
  explicit Team(int threads) : size_(threads) {
    for (int i = 1; i < threads; i++) threads_.emplace_back([this, i] { serve(i); });
  }

  ~Team() {
    stopping_ = true;
    job_number_.fetch_add(1, std::memory_order_release);
    job_number_.notify_all();
    for (auto& thread : threads_) thread.join();
  }

  int size() const { return size_; }

  // Runs `job(thread)` on all threads and returns when all have ended.
  void run(const std::function<void(int)>& job) {
    next_.store(0, std::memory_order_relaxed);
    job_ = &job;
    if (size_ > 1) {
      job_number_.fetch_add(1, std::memory_order_release);
      job_number_.notify_all();
    }
    job(0);
    barrier();
  }

  // All threads of a job meet here; claims start anew.
  void barrier() {
    const uint32_t turn = turn_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
      arrived_.store(0, std::memory_order_relaxed);
      next_.store(0, std::memory_order_relaxed);
      turn_.store(turn + 1, std::memory_order_release);
      if (size_ > 1) turn_.notify_all();
    } else {
      wait_changed(turn_, turn);
    }
  }

  // Pieces 0..count-1, each taken by one thread, in order; ends with a barrier.
  template <class Body>
  void each(int count, const Body& body) {
    for (int piece; (piece = next_.fetch_add(1, std::memory_order_relaxed)) < count;) body(piece);
    barrier();
  }

 private:
  void serve(int thread) {
    uint32_t seen = 0;
    for (;;) {
      wait_changed(job_number_, seen);
      seen++;
      if (stopping_) return;
      (*job_)(thread);
      barrier();
    }
  }

  const int size_;
  std::vector<std::thread> threads_;
  const std::function<void(int)>* job_ = nullptr;
  std::atomic<bool> stopping_{false};
  alignas(64) std::atomic<uint32_t> job_number_{0};
  alignas(64) std::atomic<int> next_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<uint32_t> turn_{0};
};

}  // namespace spotwise
