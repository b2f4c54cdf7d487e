// SharedRank: the rounds of one rank of a group in several processes (shared_group.h explains
// them).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/comm/local/host_communicator.h"
#include "lockstep/comm/local/rendezvous.h"

namespace lockstep {

// How a staging buffer is divided. A rank's chunk of a round holds a part for every rank. A buffer
// is a ring of chunks, each as long as needed; it is small, so that it stays in a cache.
struct StagingShape {
  explicit StagingShape(int ranks);
  int ranks;
  std::size_t piece_bytes;  // at most
  std::size_t area_bytes;   // of one rank
};

class SharedRank final : public HostRank {
 public:
  // `staging`: the staging buffers of all ranks, one after another. `ranks_of_process` decides on
  // the order of sums, and outlives this object.
  SharedRank(Rendezvous& rendezvous, int rank, StagingShape shape,
             std::span<const int> ranks_of_process, std::byte* staging);

  std::uint64_t start(const Round& round) override;
  bool poll(std::uint64_t number) override;
  void await_ranks(std::uint64_t number) override;
  void finish(std::uint64_t number) override;

  // This rank's additions for a round.
  void add(std::uint64_t number) noexcept;
  // Drops what is in flight.
  void reset();

 private:
  // A collective, and the rounds that it takes.
  struct Transfer {
    Round round;
    std::size_t slice_bytes = 0;  // of the longest slice
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };
  // Where the chunks of a round are in the staging buffers: counted from the beginning of all
  // rounds, as if the ring had no end. All ranks count the same.
  struct Place {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };
  // The part that a rank adds: where it is in the memory of each rank and in its chunk.
  struct Piece {
    std::size_t in_data = 0;
    std::size_t in_chunk = 0;
    std::size_t bytes = 0;
  };

  Transfer& transfer(std::uint64_t number) { return transfers_[number % Rendezvous::kSlots]; }
  // The transfer at or after `number` to which a round belongs.
  std::uint64_t of_round(std::uint64_t number, std::uint64_t round);
  std::uint64_t rounds_of(const Transfer& transfer) const;
  std::size_t piece_bytes(const Transfer& transfer, std::uint64_t round) const;
  Piece piece(const Transfer& transfer, std::uint64_t round, int of) const;
  Place& place(std::uint64_t round) { return places_[round % Rendezvous::kSlots]; }
  // Where the chunks of the next round will be, and whether all have left what was there.
  Place next_place(const Transfer& transfer, std::uint64_t round) const;
  bool has_room();
  std::byte* staging(int rank, std::uint64_t round);

  // Each does the next round's part if it can, and returns whether it could.
  bool copy_in_next();
  bool copy_out_next();
  // Makes all progress that is possible without waiting.
  void progress();
  bool can_progress();
  void copy_in(const Transfer& transfer, std::uint64_t round);
  void copy_out(const Transfer& transfer, std::uint64_t round);
  template <class Ready>
  void await(std::uint64_t number, const Ready& ready);

  Rendezvous& rendezvous_;
  const int rank_;
  RankCounts& mine_;
  StagingShape shape_;
  std::span<const int> ranks_of_process_;
  std::byte* staging_;
  std::vector<Round> chunks_;  // of all ranks in one round, where this process sees them
  Transfer transfers_[Rendezvous::kSlots];
  Place places_[Rendezvous::kSlots];
  std::uint64_t started_ = 0;     // transfers
  std::uint64_t in_ = 0;          // the one that is copied in,
  std::uint64_t added_ = 0;       // added,
  std::uint64_t out_ = 0;         // and copied out; those before it are over
  std::uint64_t rounds_end_ = 0;  // of all transfers
  std::uint64_t places_end_ = 0;  // of all rounds that were copied in
  std::uint64_t oldest_ = 0;      // the first round that some rank may not have left
};

}  // namespace lockstep
