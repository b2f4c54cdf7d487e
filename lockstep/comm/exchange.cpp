// The sizes are gathered first; then every rank that has bytes broadcasts them.
#include "lockstep/comm/exchange.h"

#include <deque>

#include "lockstep/base/error.h"

namespace lockstep {

std::vector<std::string> exchange(Communicator& comm, std::string_view mine) {
  const auto ranks = static_cast<std::size_t>(comm.size());
  const auto rank = static_cast<std::size_t>(comm.rank());
  std::vector<std::int64_t> sizes(ranks);
  sizes[rank] = static_cast<std::int64_t>(mine.size());
  const Slice own = slice_of(ranks, sizeof(std::int64_t), comm.rank(), comm.size());
  ensure(own.begin == rank && own.end == rank + 1, "[comm] rank {} of {} has the slice {} to {}",
         rank, ranks, own.begin, own.end);
  const auto gather = comm.all_gather(std::as_writable_bytes(std::span(sizes)), DType::I64);
  gather->start();
  gather->finish();

  std::vector<std::string> all(ranks);
  all[rank] = mine;
  std::deque<std::unique_ptr<Collective>> in_flight;
  const auto finish_first = [&] {
    in_flight.front()->finish();
    in_flight.pop_front();
  };
  for (std::size_t root = 0; root < ranks; ++root) {
    if (sizes[root] == 0) continue;
    all[root].resize(static_cast<std::size_t>(sizes[root]));
    if (static_cast<int>(in_flight.size()) == comm.max_in_flight()) finish_first();
    in_flight.push_back(
        comm.broadcast(std::as_writable_bytes(std::span<char>(all[root])), static_cast<int>(root)));
    in_flight.back()->start();
  }
  while (!in_flight.empty()) finish_first();
  return all;
}

}  // namespace lockstep
