// The exchange of members on one machine, through memory that all of them map.
//
// Each ordered pair of members has a ring of bytes with one writer and one reader. A thread that waits sleeps on its member's
// bell (a futex) after a short spin. A pulse thread stamps a clock and watches the others': a member that ended (its pidfd) or
// whose stamp is too old breaks the exchange for all, and every wait ends at once. Nothing holds a lock that a killed member
// could keep. A broken exchange is never used again; the group forms another.
//
// Invariants: `written` and `read` of a ring only grow, and 0 <= written - read <= capacity; only the writer stores `written`,
// only the reader `read`.

#pragma once

#include <linux/futex.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "exchange.h"
#include "team.h"

namespace spotwise {

constexpr int kRingSpins = 100;              // some 2 us: the peer may be waiting for this core
constexpr int64_t kPieceBytes = 128 * 1024;  // gathered at a time, so that it stays in the cache

struct alignas(64) MemberWords {
  std::atomic<uint32_t> bell;
  std::atomic<uint32_t> sleeping;
  std::atomic<int32_t> pid;
  std::atomic<uint64_t> pid_namespace;
  std::atomic<int64_t> pulse_ns;  // 0: has not joined yet
};

struct alignas(64) RingWords {
  std::atomic<uint64_t> written;
  alignas(64) std::atomic<uint64_t> read;
};

struct alignas(64) ExchangeWords {
  std::atomic<int32_t> broken_by;  // 0: whole; else 1 + the member that is gone, or -1 for an abort
  std::atomic<int64_t> broken_ns;
};

class RingExchange final : public Exchange {
 public:
  static int64_t bytes(int size, int64_t capacity) {
    return sizeof(ExchangeWords) + size * sizeof(MemberWords) + int64_t(size) * size * (sizeof(RingWords) + capacity);
  }

  // Joins; `memory` is zero before the first member joins, and `capacity`, a multiple of 64, is that of each ring.
  RingExchange(void* memory, int rank, int size, int64_t capacity, int64_t patience_ms)
      : rank_(rank), size_(size), capacity_(capacity), patience_ns_(patience_ms * 1'000'000) {
    char* at = static_cast<char*>(memory);
    group_ = reinterpret_cast<ExchangeWords*>(at);
    members_ = reinterpret_cast<MemberWords*>(at += sizeof(ExchangeWords));
    rings_ = reinterpret_cast<RingWords*>(at += size * sizeof(MemberWords));
    data_ = at + int64_t(size) * size * sizeof(RingWords);
    members_[rank].pid.store(getpid(), std::memory_order_relaxed);
    members_[rank].pid_namespace.store(pid_namespace(), std::memory_order_relaxed);
    members_[rank].pulse_ns.store(now_ns(), std::memory_order_release);
    pulse_ = std::thread([this] { watch(); });
  }

  ~RingExchange() override {
    closing_.store(true, std::memory_order_release);
    pulse_.join();
  }

  int broken() const override { return group_->broken_by.load(std::memory_order_acquire); }

  bool complete() const override {
    return std::all_of(members_, members_ + size_, [](const MemberWords& member) { return member.pulse_ns.load() != 0; });
  }

  void fail(int by) override {
    int32_t whole = 0;
    if (group_->broken_by.compare_exchange_strong(whole, by)) group_->broken_ns.store(now_ns());
    for (int member = 0; member < size_; member++) ring_bell(member);
  }

  bool send(int to, const char* data, int64_t bytes) override {
    if (!write(to, data, bytes)) return false;
    wake(to);
    return true;
  }

  bool receive(int from, char* data, int64_t bytes) override {
    RingWords& words = ring(from, rank_);
    const char* source = ring_data(from, rank_);
    while (bytes > 0) {
      const uint64_t read = words.read.load(std::memory_order_relaxed);
      if (!wait([&] { return words.written.load(std::memory_order_acquire) != read; })) return false;
      const int64_t there = words.written.load(std::memory_order_acquire) - read, place = read % capacity_;
      const int64_t part = std::min({bytes, there, capacity_ - place});
      std::memcpy(data, source + place, part);
      words.read.store(read + part, std::memory_order_seq_cst);
      data += part, bytes -= part;
      if (there + part > capacity_) wake(from);  // it may have waited for room
    }
    return true;
  }

  bool gather(char* matrix, int64_t rows, int64_t row_bytes, const int64_t* bounds, int first, int count,
              int root) override {
    const int own = rank_ - first;
    int64_t widest = 1;
    for (int i = 0; i < count; i++) widest = std::max(widest, bounds[i + 1] - bounds[i]);
    // At most half a ring at a time: a member that is one piece behind has room for the next, so that no two wait for each other.
    const int64_t piece = std::max<int64_t>(1, std::min(kPieceBytes, capacity_ / 2) / widest);
    for (int64_t row = 0; row < rows; row += piece) {
      const int64_t height = std::min(piece, rows - row);
      char* at = matrix + row * row_bytes;
      for (int i = 1; i < count; i++) {
        const int peer = (own + i) % count;
        if (root != kNobody && peer != root) continue;
        for (int64_t r = 0; r < height; r++)
          if (!write(first + peer, at + r * row_bytes + bounds[own], bounds[own + 1] - bounds[own])) return false;
        wake(first + peer);
      }
      for (int i = 1; i < count && (root == kNobody || own == root); i++) {
        const int peer = (own + i) % count;
        for (int64_t r = 0; r < height; r++)
          if (!receive(first + peer, at + r * row_bytes + bounds[peer], bounds[peer + 1] - bounds[peer])) return false;
      }
    }
    return true;
  }

 private:
  static uint64_t pid_namespace() {
    struct stat status = {};
    stat("/proc/self/ns/pid", &status);
    return status.st_ino;
  }

  RingWords& ring(int from, int to) { return rings_[from * size_ + to]; }
  char* ring_data(int from, int to) { return data_ + (int64_t(from) * size_ + to) * capacity_; }

  // Writes into the ring without waking its reader, unless there is no room.
  bool write(int to, const char* data, int64_t bytes) {
    RingWords& words = ring(rank_, to);
    char* target = ring_data(rank_, to);
    while (bytes > 0) {
      const uint64_t written = words.written.load(std::memory_order_relaxed);
      const auto room = [&] { return capacity_ - int64_t(written - words.read.load(std::memory_order_acquire)); };
      if (room() == 0) {
        wake(to);
        if (!wait([&] { return room() > 0; })) return false;
      }
      const int64_t place = written % capacity_, part = std::min({bytes, room(), capacity_ - place});
      std::memcpy(target + place, data, part);
      words.written.store(written + part, std::memory_order_seq_cst);
      data += part, bytes -= part;
    }
    return true;
  }

  // Waits until `is_ready()`; false where the exchange is broken.
  template <class Ready>
  bool wait(const Ready& is_ready) {
    for (int i = 0; i < kRingSpins; i++) {
      if (is_ready()) return true;
      relax();
    }
    MemberWords& own = members_[rank_];
    for (;;) {
      const uint32_t bell = own.bell.load(std::memory_order_seq_cst);
      own.sleeping.store(1, std::memory_order_seq_cst);
      const bool ready = is_ready();
      if (!ready && !broken()) syscall(SYS_futex, &own.bell, FUTEX_WAIT, bell, nullptr, nullptr, 0);
      own.sleeping.store(0, std::memory_order_relaxed);
      if (ready) return true;
      if (broken()) return false;
    }
  }

  void wake(int member) {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (members_[member].sleeping.load(std::memory_order_seq_cst)) ring_bell(member);
  }

  void ring_bell(int member) {
    members_[member].bell.fetch_add(1, std::memory_order_seq_cst);
    syscall(SYS_futex, &members_[member].bell, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }

  // Stamps and watches until the exchange is closed or broken.
  void watch() {
    std::vector<pollfd> ends(size_, pollfd{-1, POLLIN, 0});
    const uint64_t own_namespace = pid_namespace();
    int64_t last_ns = now_ns();
    while (!closing_.load(std::memory_order_acquire) && !broken()) {
      const int64_t at_ns = now_ns();
      members_[rank_].pulse_ns.store(at_ns, std::memory_order_release);
      for (int member = 0; member < size_; member++) {
        const int64_t stamp_ns = members_[member].pulse_ns.load(std::memory_order_acquire);
        if (member == rank_ || stamp_ns == 0) continue;
        if (ends[member].fd < 0 && members_[member].pid_namespace.load() == own_namespace)
          ends[member].fd = syscall(SYS_pidfd_open, members_[member].pid.load(), 0);
        if (at_ns - stamp_ns > patience_ns_ && at_ns - last_ns < kLateNs) fail(1 + member);
      }
      last_ns = at_ns;
      if (poll(ends.data(), ends.size(), kPulseMs) > 0)
        for (int member = 0; member < size_; member++)
          if (ends[member].revents) fail(1 + member);
    }
    for (const pollfd& end : ends)
      if (end.fd >= 0) close(end.fd);
  }

  const int rank_, size_;
  const int64_t capacity_, patience_ns_;
  ExchangeWords* group_;
  MemberWords* members_;
  RingWords* rings_;
  char* data_;
  std::atomic<bool> closing_{false};
  std::thread pulse_;
};

}  // namespace spotwise
