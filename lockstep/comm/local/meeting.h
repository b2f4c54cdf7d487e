// Meeting: the state through which the ranks of a group meet (rendezvous.h has the protocol). It is
// plain memory, all zero at first, owned by one process or mapped by several.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <span>

#include "lockstep/comm/failure.h"
#include "lockstep/comm/local/event_count.h"
#include "lockstep/comm/local/round.h"

namespace lockstep {

// The progress of one rank, which alone writes it.
struct RankCounts {
  alignas(64) std::atomic<std::uint64_t> started = 0;  // collectives
  std::atomic<std::uint64_t> arrived = 0;              // rounds to which it has brought its data,
  std::atomic<std::uint64_t> done = 0;                 // in which it has done its slice,
  std::atomic<std::uint64_t> left = 0;                 // and from which it has taken the result
  alignas(64) std::atomic<std::uint64_t> claimed = 0;  // read only after an abort
};

// A failure of one process, which alone writes it.
struct FailureRecord {
  std::int32_t rank = -1;
  FailureKind kind = FailureKind::Other;
  std::uint32_t length = 0;
  std::array<char, 4084> text = {};

  void set(const Failure& failure) {
    rank = failure.rank;
    kind = failure.kind;
    std::size_t end = std::min(failure.message.size(), text.size());
    // Do not cut a multi-byte character.
    while (end < failure.message.size() && end > 0 && (failure.message[end] & 0xC0) == 0x80) --end;
    length = static_cast<std::uint32_t>(end);
    std::copy_n(failure.message.begin(), end, text.begin());
  }
  Failure get() const {
    return {.rank = rank, .kind = kind, .message = std::string(text.data(), length)};
  }
};

class Meeting {
 public:
  // Rounds that a rank may have in flight.
  static constexpr std::uint64_t kSlots = 64;

  static std::size_t bytes(int ranks, int processes) {
    return sizeof(Head) + sizeof(FailureRecord) * static_cast<std::size_t>(processes) +
           sizeof(RankCounts) * static_cast<std::size_t>(ranks) +
           sizeof(Round) * kSlots * static_cast<std::size_t>(ranks);
  }

  // At `memory`, aligned to 64 bytes.
  Meeting(std::byte* memory, int ranks, int processes) {
    const auto take = [&]<class T>(T*, std::size_t count) {
      const auto first = reinterpret_cast<T*>(memory);
      memory += sizeof(T) * count;
      return std::span<T>(first, count);
    };
    head_ = take(static_cast<Head*>(nullptr), 1).data();
    counts_ = take(static_cast<RankCounts*>(nullptr), static_cast<std::size_t>(ranks));
    slots_ = take(static_cast<Round*>(nullptr), kSlots * static_cast<std::size_t>(ranks));
    failures_ = take(static_cast<FailureRecord*>(nullptr), static_cast<std::size_t>(processes));
  }

  // The process whose failure was first, plus one; 0: none.
  std::atomic<std::uint32_t>& failed() const { return head_->failed; }
  EventCount& changes() const { return head_->changes; }
  FailureRecord& failure(int process) const { return failures_[static_cast<std::size_t>(process)]; }
  std::span<RankCounts> counts() const { return counts_; }
  RankCounts& counts(int rank) const { return counts_[static_cast<std::size_t>(rank)]; }
  // What every rank brings to a round.
  std::span<Round> rounds(std::uint64_t number) const {
    return slots_.subspan(number % kSlots * counts_.size(), counts_.size());
  }

 private:
  struct Head {
    alignas(64) std::atomic<std::uint32_t> failed = 0;
    alignas(64) EventCount changes;
  };

  Head* head_ = nullptr;
  std::span<RankCounts> counts_;
  std::span<Round> slots_;
  std::span<FailureRecord> failures_;
};

}  // namespace lockstep
