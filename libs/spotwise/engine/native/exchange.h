// Gathers and messages among the members of a group, each with a rank. One thread of a member sends, receives and gathers.
//
// A member that ended or fell silent breaks the exchange for all, and every wait ends at once. A broken exchange is never used
// again; the group forms another.

#pragma once

#include <atomic>
#include <cstdint>
#include <ctime>

namespace spotwise {

constexpr int kPulseMs = 50;              // between two signs of life
constexpr int64_t kLateNs = 200'000'000;  // a pulse thread that was held up so long judges nobody
constexpr int kNobody = -1;

class Exchange {
 public:
  virtual ~Exchange() = default;

  // What one thread has waited and moved: gathers, their time, and the time in `receive` of the stage before.
  struct Times {
    std::atomic<int64_t> gathers{0}, gather_ns{0}, receive_ns{0};
  } times;

  // Whether the thread is inside a call, which waits for other members.
  std::atomic<bool> waits{false};

  // Calls `work`, which waits for other members.
  template <class Work>
  bool waiting(const Work& work) {
    waits.store(true, std::memory_order_relaxed);
    const bool done = work();
    waits.store(false, std::memory_order_relaxed);
    return done;
  }

  // The same, and adds its time.
  template <class Work>
  bool timed(std::atomic<int64_t>& total_ns, const Work& work) {
    const int64_t began_ns = now_ns();
    const bool done = waiting(work);
    total_ns.fetch_add(now_ns() - began_ns, std::memory_order_relaxed);
    return done;
  }

  // 0 while the exchange is whole, else 1 + the rank that is gone, or -1 where the group was dissolved.
  virtual int broken() const = 0;

  // Whether every other member has shown life: from then on its silence breaks the exchange.
  virtual bool complete() const = 0;

  // Ends every wait of every member; returns at once. `by` as `broken()`. Any thread may call it.
  virtual void fail(int by) = 0;

  // The following return false where the exchange is broken.
  virtual bool send(int to, const char* data, int64_t bytes) = 0;
  virtual bool receive(int from, char* data, int64_t bytes) = 0;

  // Completes `matrix`, rows of `row_bytes`, of which the i-th of `count` members, from `first` on, has written bytes
  // [bounds[i], bounds[i + 1]) of each row: at all of these members, or at the `root`-th only.
  virtual bool gather(char* matrix, int64_t rows, int64_t row_bytes, const int64_t* bounds, int first, int count,
                      int root) = 0;

 protected:
  static int64_t now_ns() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1'000'000'000LL + time.tv_nsec;
  }
};

}  // namespace spotwise
