// Mailboxes: the small messages of a group's workers to one another, in order between any two.
//
// Every worker sends all others one mail per collective: what it runs and, if that is little data,
// the data itself. So a small collective takes one message each way, and ranks that mean different
// collectives find out before they use one another's data. The last mail of a worker says why it
// leaves. The memory for the next mails of every worker is always ready.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/comm/failure.h"
#include "lockstep/comm/local/round.h"
#include "lockstep/comm/wire.h"

namespace lockstep {

enum class MailKind : std::uint32_t { None, Hello, Collective, Failure, Goodbye };

// All workers have the same byte order.
struct alignas(64) MailHead {
  MailKind kind = MailKind::None;
  std::uint32_t bytes = 0;  // of the data that follows
  // Hello
  std::uint64_t digest = 0;
  // Collective
  std::uint64_t collective = 0;
  std::uint64_t collective_bytes = 0;
  std::int32_t root = 0;  // of a failure: its rank
  CollectiveKind what = CollectiveKind::AllReduce;
  DType dtype = DType::U8;
  FailureKind failure = FailureKind::Other;
};

// A mail's data has at most so many bytes.
inline constexpr std::size_t kMailBytes = std::size_t{8} << 10;

class Mailboxes {
 public:
  using Clock = std::chrono::steady_clock;
  // Called again and again by waits: throws if waiting is of no use.
  using Look = std::function<void()>;

  explicit Mailboxes(Wire& wire);

  // Sends a mail; the data is copied.
  void send(const MailHead& head, std::span<const std::byte> data, std::span<const int> to,
            const Look& look);
  // The next mail of a worker and its data, until take() is called.
  const MailHead& await(int from, const Look& look);
  std::span<const std::byte> data(int from) const;
  void take(int from);

  // Without waiting: the failure that a worker has sent. LostWorker if it has ended without a last
  // mail.
  std::optional<Failure> look(int from);

  // Sends the last mail to all; waits until it is sent, or `at_most`. Throws nothing.
  void send_last(const std::optional<Failure>& failure, std::chrono::milliseconds at_most) noexcept;
  // Waits until all have sent their last mail, or `at_most`: the connections may then be closed
  // without loss. Throws nothing.
  void await_last(std::chrono::milliseconds at_most) noexcept;

 private:
  struct Mail {
    MailHead head;
    std::array<std::byte, kMailBytes> data;
  };
  // How many mails a worker may be ahead of what another has taken.
  static constexpr std::size_t kAhead = 2;
  struct Inbox {
    std::uint64_t next = 0;
    std::array<Mail, kAhead> mails;
    std::array<std::unique_ptr<Transfer>, kAhead> transfers;
  };
  struct Outgoing {
    Mail mail;
    std::vector<std::unique_ptr<Transfer>> transfers;
  };

  Inbox& inbox(int from) const { return *inboxes_[static_cast<std::size_t>(from)]; }
  void receive(int from, std::uint64_t number);
  static MailKind peek(const Mail& mail);
  bool has_left(int from) const;
  static Failure failure_in(const Mail& mail);
  void send_to(Outgoing& outgoing, int to);
  void fill(Outgoing& outgoing, const MailHead& head, std::span<const std::byte> data);

  Wire& wire_;
  std::vector<std::unique_ptr<Inbox>> inboxes_;  // by worker
  std::vector<std::uint64_t> sent_;              // to each worker
  std::array<Outgoing, kAhead> outgoing_;
  Outgoing last_;
  std::uint64_t turn_ = 0;
};

// The tag of a part of a collective: 12 bits of its number, 2 of the phase and 17 of the chunk; and
// what the collective is.
std::uint64_t tag_of(const Round& round, std::uint32_t phase, std::size_t chunk);
inline constexpr std::size_t kMostChunks = std::size_t{1} << 17;

}  // namespace lockstep
