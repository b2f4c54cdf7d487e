// In a first round every rank gives a slot: the number of its bytes, and the bytes themselves where
// they fit. Ranks whose bytes do not fit broadcast them afterwards.
#include "lockstep/comm/exchange.h"

#include <algorithm>
#include <array>
#include <deque>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

struct Slot {
  std::int64_t bytes = 0;
  std::array<char, 248> data = {};
};

// All ranks' slots, given one's own.
std::vector<Slot> gather_slots(Communicator& comm, const Slot& mine) {
  const auto ranks = static_cast<std::size_t>(comm.size());
  const auto rank = static_cast<std::size_t>(comm.rank());
  constexpr std::size_t kWords = sizeof(Slot) / sizeof(std::int64_t);
  const Slice own = slice_of(ranks * kWords, sizeof(std::int64_t), comm.rank(), comm.size());
  ensure(own.begin == rank * kWords && own.end == (rank + 1) * kWords,
         "[comm] rank {} of {} has the slice {} to {}", rank, ranks, own.begin, own.end);
  std::vector<Slot> slots(ranks);
  slots[rank] = mine;
  const auto gather = comm.all_gather(std::as_writable_bytes(std::span(slots)), DType::I64);
  gather->start();
  gather->finish();
  return slots;
}

}  // namespace

std::vector<std::string> exchange(Communicator& comm, std::string_view mine) {
  const auto ranks = static_cast<std::size_t>(comm.size());
  const auto rank = static_cast<std::size_t>(comm.rank());
  Slot own{.bytes = static_cast<std::int64_t>(mine.size())};
  if (mine.size() <= own.data.size()) std::ranges::copy(mine, own.data.begin());
  const std::vector<Slot> slots = gather_slots(comm, own);

  std::vector<std::string> all(ranks);
  all[rank] = mine;
  std::deque<std::unique_ptr<Collective>> in_flight;
  const auto finish_first = [&] {
    in_flight.front()->finish();
    in_flight.pop_front();
  };
  for (std::size_t root = 0; root < ranks; ++root) {
    const auto bytes = static_cast<std::size_t>(slots[root].bytes);
    if (bytes <= own.data.size()) {
      all[root].assign(slots[root].data.data(), bytes);
      continue;
    }
    all[root].resize(bytes);
    if (static_cast<int>(in_flight.size()) == comm.max_in_flight()) finish_first();
    in_flight.push_back(
        comm.broadcast(std::as_writable_bytes(std::span<char>(all[root])), static_cast<int>(root)));
    in_flight.back()->start();
  }
  while (!in_flight.empty()) finish_first();
  return all;
}

}  // namespace lockstep
