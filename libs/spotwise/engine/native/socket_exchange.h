// The exchange of members on different machines, through TCP connections that they hand over: to each other member one for data,
// and one for signs of life.
//
// The pulse thread sends a byte every 50 ms and reads those of the others. Silence, or an end of the connection, breaks the
// exchange; whoever breaks it says by whom in a last byte to all, and shuts all connections down, which ends every wait. What is
// sent before the other has joined waits in its connection; nobody is judged before its first sign of life.

#pragma once

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <ctime>
#include <memory>
#include <thread>
#include <vector>

#include "exchange.h"

namespace spotwise {

constexpr int kRowsAtOnce = 64;  // of a matrix, in one call of the system

class SocketExchange final : public Exchange {
 public:
  SocketExchange(int rank, int size, int64_t patience_ms)
      : rank_(rank), size_(size), patience_ns_(patience_ms * 1'000'000), links_(new Link[size]) {
    bell_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    pulse_ = std::thread([this] { watch(); });
  }

  ~SocketExchange() override {
    closing_.store(true, std::memory_order_release);
    ring_bell();
    pulse_.join();
    for (int member = 0; member < size_; member++) {
      if (links_[member].data >= 0) close(links_[member].data);
      if (links_[member].pulse >= 0) close(links_[member].pulse);
    }
    close(bell_);
  }

  // Takes both connections with a member, once; they do not block, and are closed with the exchange.
  void connect(int member, int data, int pulse) {
    links_[member].pulse.store(pulse, std::memory_order_release);
    links_[member].data.store(data, std::memory_order_release);
    if (const int by = broken()) end(links_[member], by);
    ring_bell();
  }

  int broken() const override { return broken_by_.load(std::memory_order_acquire); }

  bool complete() const override {
    for (int member = 0; member < size_; member++)
      if (member != rank_ && !links_[member].heard_ns.load(std::memory_order_relaxed)) return false;
    return true;
  }

  void fail(int by) override {
    int whole = 0;
    if (!broken_by_.compare_exchange_strong(whole, by)) return;
    for (int member = 0; member < size_; member++) end(links_[member], by);
    ring_bell();
  }

  bool send(int to, const char* data, int64_t bytes) override {
    Flow flow{to, const_cast<char*>(data), 1, bytes, bytes, true};
    return carry(&flow, 1);
  }

  bool receive(int from, char* data, int64_t bytes) override {
    Flow flow{from, data, 1, bytes, bytes, false};
    return carry(&flow, 1);
  }

  bool gather(char* matrix, int64_t rows, int64_t row_bytes, const int64_t* bounds, int first, int count,
              int root) override {
    const int own = rank_ - first;
    std::vector<Flow> flows;
    for (int i = 1; i < count; i++) {
      const int to = (own + i) % count, from = (own - i + count) % count;
      const auto flow = [&](int peer, int part, bool sends) {
        const int64_t width = bounds[part + 1] - bounds[part];
        if (width > 0) flows.push_back({first + peer, matrix + bounds[part], rows, width, row_bytes, sends});
      };
      if (root == kNobody || to == root) flow(to, own, true);
      if (root == kNobody || own == root) flow(from, from, false);
    }
    return carry(flows.data(), int(flows.size()));
  }

 private:
  struct Link {
    std::atomic<int> data{-1}, pulse{-1};
    std::atomic<int64_t> heard_ns{0};  // 0: never
  };

  // A part of a matrix, `rows` of `width` bytes that begin `stride` bytes apart, on its way to or from a member.
  struct Flow {
    int member;
    char* at;
    int64_t rows, width, stride;
    bool sends;
    int64_t done = 0;

    bool is_done() const { return done == rows * width; }
  };

  // Moves all flows, whichever can: members that send to each other at once never wait for one another's room.
  bool carry(Flow* flows, int count) {
    std::vector<pollfd> waits;
    for (;;) {
      if (broken()) return false;
      waits.assign(1, {bell_, POLLIN, 0});
      bool is_done = true;
      for (Flow* flow = flows; flow != flows + count; flow++) {
        const int data = links_[flow->member].data.load(std::memory_order_acquire);
        if (data >= 0 && !advance(*flow, data)) return lost(flow->member);
        if (flow->is_done()) continue;
        is_done = false;
        if (data >= 0) waits.push_back({data, short(flow->sends ? POLLOUT : POLLIN), 0});
      }
      if (is_done) return true;
      poll(waits.data(), waits.size(), -1);
      if (waits[0].revents) {
        uint64_t rings;
        if (read(bell_, &rings, sizeof rings) < 0 && errno != EAGAIN) return false;
      }
    }
  }

  // Moves what can be moved at once; false where the connection has ended.
  static bool advance(Flow& flow, int data) {
    while (!flow.is_done()) {
      iovec parts[kRowsAtOnce];
      int64_t row = flow.done / flow.width, offset = flow.done % flow.width;
      int count = 0;
      for (; count < kRowsAtOnce && row + count < flow.rows; count++) {
        parts[count] = {flow.at + (row + count) * flow.stride + offset, size_t(flow.width - offset)};
        offset = 0;
      }
      msghdr message = {};
      message.msg_iov = parts, message.msg_iovlen = count;
      const ssize_t moved = flow.sends ? sendmsg(data, &message, MSG_NOSIGNAL) : recvmsg(data, &message, 0);
      if (moved > 0) {
        flow.done += moved;
      } else if (moved == 0) {
        return false;
      } else if (errno == EAGAIN) {
        return true;
      } else if (errno != EINTR) {
        return false;
      }
    }
    return true;
  }

  // Breaks the exchange, unless the pulse thread learns soon by whom it was broken.
  bool lost(int member) {
    for (int waited_ms = 0; !broken() && waited_ms < 2 * kPulseMs; waited_ms += 5) poll(nullptr, 0, 5);
    fail(1 + member);
    return false;
  }

  static void end(const Link& link, int by) {
    const int data = link.data.load(std::memory_order_acquire), pulse = link.pulse.load(std::memory_order_acquire);
    if (pulse >= 0) {
      const auto last = int8_t(by);
      (void)!::send(pulse, &last, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
      shutdown(pulse, SHUT_RDWR);
    }
    if (data >= 0) shutdown(data, SHUT_RDWR);
  }

  void ring_bell() {
    const uint64_t one = 1;
    (void)!write(bell_, &one, sizeof one);
  }

  // Shows life and watches for that of the others, until the exchange is closed or broken.
  void watch() {
    std::vector<pollfd> waits(size_);
    int64_t shown_ns = 0;
    while (!closing_.load(std::memory_order_acquire) && !broken()) {
      const int64_t at_ns = now_ns();
      const bool is_late = shown_ns && at_ns - shown_ns > kLateNs;
      const bool shows = at_ns - shown_ns >= kPulseMs * 1'000'000LL;
      if (shows) shown_ns = at_ns;
      for (int member = 0; member < size_; member++) {
        Link& link = links_[member];
        const int pulse = link.pulse.load(std::memory_order_acquire);
        waits[member] = {pulse, POLLIN, 0};
        if (pulse < 0) continue;
        const int8_t life = 0;
        if (shows) (void)!::send(pulse, &life, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
        listen_to(member, link, pulse, at_ns);
        const int64_t heard_ns = link.heard_ns.load(std::memory_order_relaxed);
        if (heard_ns && at_ns - heard_ns > patience_ns_ && !is_late) fail(1 + member);
      }
      poll(waits.data(), waits.size(), kPulseMs);
    }
  }

  void listen_to(int member, Link& link, int pulse, int64_t at_ns) {
    int8_t signs[64];
    for (;;) {
      const ssize_t count = recv(pulse, signs, sizeof signs, MSG_DONTWAIT);
      if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) return fail(1 + member);
      if (count < 0) return;
      link.heard_ns.store(at_ns, std::memory_order_relaxed);
      for (ssize_t i = 0; i < count; i++)
        if (signs[i]) return fail(signs[i]);
    }
  }

  const int rank_, size_;
  const int64_t patience_ns_;
  std::unique_ptr<Link[]> links_;
  int bell_;
  std::atomic<int> broken_by_{0};
  std::atomic<bool> closing_{false};
  std::thread pulse_;
};

}  // namespace spotwise
