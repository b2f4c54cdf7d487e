#include "lockstep/comm/shared/shared_rank.h"

#include <algorithm>
#include <cstring>

#include "lockstep/comm/local/slice_work.h"

namespace lockstep {
namespace {

constexpr std::size_t kStagingLine = 64;
// Large enough that meeting costs little compared with copying, small enough that what one rank has
// copied in is still in a cache when the next one adds it.
constexpr std::size_t kChunkBytes = std::size_t{128} << 10;
constexpr std::size_t kChunksInArea = 16;  // how far a rank may be ahead of another

std::size_t whole_lines(std::size_t bytes) {
  return (bytes + kStagingLine - 1) / kStagingLine * kStagingLine;
}

void copy_piece(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

}  // namespace

StagingShape::StagingShape(int ranks)
    : ranks(ranks),
      piece_bytes(whole_lines(kChunkBytes / static_cast<std::size_t>(ranks))),
      area_bytes(piece_bytes * static_cast<std::size_t>(ranks) * kChunksInArea) {}

SharedRank::SharedRank(Rendezvous& rendezvous, int rank, StagingShape shape,
                       std::span<const int> ranks_of_process, std::byte* staging)
    : rendezvous_(rendezvous),
      rank_(rank),
      mine_(rendezvous.counts(rank)),
      shape_(shape),
      ranks_of_process_(ranks_of_process),
      staging_(staging),
      chunks_(static_cast<std::size_t>(shape.ranks)) {}

std::byte* SharedRank::staging(int rank, std::uint64_t round) {
  return staging_ + static_cast<std::size_t>(rank) * shape_.area_bytes +
         place(round).begin % shape_.area_bytes;
}

// As many as the longest slice needs chunks, and one if there is nothing to copy, since ranks must
// meet then as well. A rank that is alone has nothing to do.
std::uint64_t SharedRank::rounds_of(const Transfer& transfer) const {
  if (shape_.ranks == 1) return 0;
  return std::max<std::uint64_t>(
      (transfer.slice_bytes + shape_.piece_bytes - 1) / shape_.piece_bytes, 1);
}

std::size_t SharedRank::piece_bytes(const Transfer& transfer, std::uint64_t round) const {
  const std::size_t before = (round - transfer.begin) * shape_.piece_bytes;
  return whole_lines(std::min(shape_.piece_bytes, transfer.slice_bytes - before));
}

SharedRank::Piece SharedRank::piece(const Transfer& transfer, std::uint64_t round, int of) const {
  const std::size_t element = size_of(transfer.round.dtype);
  const Slice slice = slice_of(transfer.round.elements(), element, of, shape_.ranks);
  const std::size_t begin = slice.begin * element + (round - transfer.begin) * shape_.piece_bytes;
  const std::size_t end = std::min(slice.end * element, begin + shape_.piece_bytes);
  return {.in_data = begin,
          .in_chunk = static_cast<std::size_t>(of) * piece_bytes(transfer, round),
          .bytes = end > begin ? end - begin : 0};
}

// A chunk never wraps around the end of the ring.
SharedRank::Place SharedRank::next_place(const Transfer& transfer, std::uint64_t round) const {
  const std::size_t bytes = piece_bytes(transfer, round) * static_cast<std::size_t>(shape_.ranks);
  const std::size_t area = shape_.area_bytes;
  const bool fits = places_end_ % area + bytes <= area;
  const std::uint64_t begin = fits ? places_end_ : (places_end_ / area + 1) * area;
  return {begin, begin + bytes};
}

bool SharedRank::has_room() {
  const std::uint64_t next = mine_.arrived.load();
  while (oldest_ < next && rendezvous_.all_at(&RankCounts::left, oldest_ + 1)) ++oldest_;
  if (oldest_ == next) return true;
  return next - oldest_ < Rendezvous::kSlots &&
         next_place(transfer(in_), next).end - place(oldest_).begin <= shape_.area_bytes;
}

std::uint64_t SharedRank::of_round(std::uint64_t number, std::uint64_t round) {
  while (number < started_ && transfer(number).end <= round) ++number;
  return number;
}

std::uint64_t SharedRank::start(const Round& round) {
  if (started_ - out_ == Rendezvous::kSlots) fail_for_too_many(rendezvous_, rank_, round);
  const std::uint64_t number = started_++;
  Transfer& next = transfer(number);
  next.round = round;
  next.round.collective = number;
  next.slice_bytes = 0;
  for (int of = 0; of < shape_.ranks; ++of) {
    const Slice slice = slice_of(round.elements(), size_of(round.dtype), of, shape_.ranks);
    next.slice_bytes = std::max(next.slice_bytes, (slice.end - slice.begin) * size_of(round.dtype));
  }
  next.begin = rounds_end_;
  next.end = rounds_end_ += rounds_of(next);
  rendezvous_.publish(rank_, &RankCounts::started, started_);
  copy_in_next();
  return number;
}

bool SharedRank::copy_in_next() {
  const std::uint64_t next = mine_.arrived.load();
  in_ = of_round(in_, next);
  if (in_ == started_ || !has_room()) return false;
  place(next) = next_place(transfer(in_), next);
  places_end_ = place(next).end;
  copy_in(transfer(in_), next);
  rendezvous_.arrive(rank_, transfer(in_).round);
  return true;
}

bool SharedRank::copy_out_next() {
  const std::uint64_t next = mine_.left.load();
  out_ = of_round(out_, next);
  if (next == mine_.arrived.load() || !rendezvous_.all_at(&RankCounts::done, next + 1)) {
    return false;
  }
  copy_out(transfer(out_), next);
  rendezvous_.publish(rank_, &RankCounts::left, next + 1);
  out_ = of_round(out_, next + 1);
  return true;
}

void SharedRank::copy_in(const Transfer& transfer, std::uint64_t round) {
  const Round& what = transfer.round;
  if (what.kind == CollectiveKind::Broadcast && what.root != rank_) return;
  std::byte* const chunk = staging(rank_, round);
  for (int of = 0; of < shape_.ranks; ++of) {
    if (what.kind == CollectiveKind::AllGather && of != rank_) continue;
    const Piece piece = this->piece(transfer, round, of);
    copy_piece(chunk + piece.in_chunk, what.data + piece.in_data, piece.bytes);
  }
}

void SharedRank::copy_out(const Transfer& transfer, std::uint64_t round) {
  const Round& what = transfer.round;
  const bool broadcast = what.kind == CollectiveKind::Broadcast;
  if (broadcast && what.root == rank_) return;
  for (int of = 0; of < shape_.ranks; ++of) {
    if (what.kind == CollectiveKind::ReduceScatter && of != rank_) continue;
    if (what.kind == CollectiveKind::AllGather && of == rank_) continue;
    const Piece piece = this->piece(transfer, round, of);
    copy_piece(what.data + piece.in_data,
               staging(broadcast ? what.root : of, round) + piece.in_chunk, piece.bytes);
  }
}

void SharedRank::add(std::uint64_t number) noexcept {
  added_ = of_round(added_, number);
  const Transfer& mine = transfer(added_);
  if (mine.round.kind != CollectiveKind::AllReduce &&
      mine.round.kind != CollectiveKind::ReduceScatter) {
    return;
  }
  const Piece piece = this->piece(mine, number, rank_);
  if (piece.bytes == 0) return;
  for (int rank = 0; rank < shape_.ranks; ++rank) {
    Round& chunk = chunks_[static_cast<std::size_t>(rank)];
    chunk.dtype = mine.round.dtype;
    chunk.data = staging(rank, number);
  }
  const std::size_t element = size_of(mine.round.dtype);
  sum_slice(chunks_, ranks_of_process_,
            {piece.in_chunk / element, (piece.in_chunk + piece.bytes) / element}, rank_);
}

// One chunk at a time: the others can add it while this rank copies the next one.
void SharedRank::progress() {
  for (bool moved = true; moved;) {
    moved = copy_in_next();
    if (rendezvous_.do_slices(rank_, mine_.arrived.load())) moved = true;
    while (copy_out_next()) moved = true;
  }
}

bool SharedRank::can_progress() {
  const std::uint64_t arrived = mine_.arrived.load();
  const std::uint64_t done = mine_.done.load();
  const std::uint64_t left = mine_.left.load();
  return (arrived < rounds_end_ && has_room()) ||
         (done < arrived && rendezvous_.all_at(&RankCounts::arrived, done + 1)) ||
         (left < arrived && rendezvous_.all_at(&RankCounts::done, left + 1));
}

template <class Ready>
void SharedRank::await(std::uint64_t number, const Ready& ready) {
  // Waits for the result of a round, or for others to leave one that is in the way.
  const std::uint64_t left = mine_.left.load();
  rendezvous_.await(rank_, transfer(number).round, left < mine_.arrived.load() ? left : oldest_,
                    ready);
}

bool SharedRank::poll(std::uint64_t number) {
  progress();
  return number < out_;
}

void SharedRank::await_ranks(std::uint64_t number) {
  const auto all_started = [&] { return rendezvous_.all_at(&RankCounts::started, number + 1); };
  while (!all_started()) {
    // Others may be waiting for this rank's part of earlier rounds before they start this one.
    progress();
    await(number, [&] { return all_started() || can_progress(); });
  }
}

void SharedRank::finish(std::uint64_t number) {
  for (;;) {
    progress();
    if (number < out_) return;
    await(number, [&] { return can_progress(); });
  }
}

void SharedRank::reset() {
  started_ = in_ = added_ = out_ = rounds_end_ = places_end_ = oldest_ = 0;
}

}  // namespace lockstep
