#include "lockstep/comm/remote/worker_collectives.h"

#include <algorithm>
#include <cstring>

#include "lockstep/comm/local/slice_work.h"

namespace lockstep {
namespace {

// Long enough that a message costs little compared with its data, short enough that adding one
// overlaps with receiving the next.
constexpr std::size_t kWireChunk = std::size_t{512} << 10;
constexpr std::size_t kWindow =
    4;  // chunks of each worker that are received ahead of the additions
constexpr std::uint32_t kParts = 0;
constexpr std::uint32_t kResults = 1;

std::size_t chunks_of(const Round& round, Slice slice) {
  const std::size_t most = kWireChunk / size_of(round.dtype);
  const std::size_t chunks = (slice.size() + most - 1) / most;
  ensure(chunks <= kMostChunks, "[comm] a collective of {} bytes", round.bytes);
  return chunks;
}

Slice chunk_of(const Round& round, Slice slice, std::size_t chunk) {
  const std::size_t most = kWireChunk / size_of(round.dtype);
  const std::size_t begin = slice.begin + chunk * most;
  return {begin, std::min(begin + most, slice.end)};
}

std::span<std::byte> bytes_of(const Round& round, Slice slice) {
  const std::size_t element = size_of(round.dtype);
  return {round.data + slice.begin * element, slice.size() * element};
}

void copy_bytes(std::span<const std::byte> from, std::span<std::byte> to) {
  if (!from.empty() && from.data() != to.data()) std::memcpy(to.data(), from.data(), from.size());
}

// From the memory of one rank to that of all others of the worker.
void copy_to_all(std::span<const Round> local, const Round& from, Slice slice) {
  for (const Round& to : local) copy_bytes(bytes_of(from, slice), bytes_of(to, slice));
}

bool adds(const Round& round) {
  return round.kind == CollectiveKind::AllReduce || round.kind == CollectiveKind::ReduceScatter;
}

}  // namespace

WorkerCollectives::WorkerCollectives(const WorkerRanks& ranks, Wire& wire, Mailboxes& mails,
                                     CollectiveSite& site)
    : ranks_(ranks),
      wire_(wire),
      mails_(mails),
      site_(site),
      me_(static_cast<std::size_t>(
          std::ranges::count_if(ranks.peers(), [&](int peer) { return peer < ranks.worker(); }))),
      ones_(ranks.peers().size() + 1, 1),
      sums_(ones_.size()),
      parts_(ranks.peers().size() * kWindow) {}

void WorkerCollectives::run(std::span<const Round> local) {
  const Round& round = local.front();
  if (round.bytes <= kMailBytes || peers().empty()) return run_small(local);
  switch (round.kind) {
    case CollectiveKind::AllReduce:
    case CollectiveKind::ReduceScatter:
      return run_sum(local);
    case CollectiveKind::AllGather:
      return run_all_gather(local);
    case CollectiveKind::Broadcast:
      return run_broadcast(local);
  }
}

void WorkerCollectives::drop() {
  sends_.clear();
  results_.clear();
  for (auto& part : parts_) part.reset();
}

void WorkerCollectives::meet(std::span<const Round> local, std::span<const std::byte> data) {
  const Round& round = local.front();
  const auto look = [this] { site_.look(); };
  mails_.send({.kind = MailKind::Collective,
               .collective = round.collective,
               .collective_bytes = round.bytes,
               .root = round.root,
               .what = round.kind,
               .dtype = round.dtype},
              data, peers(), look);
  for (const int peer : peers()) {
    awaited_.store(peer);
    site_.met(peer, mails_.await(peer, look));
    messages_.fetch_add(1);
  }
  awaited_.store(-1);
  site_.all_met();
}

void WorkerCollectives::take_mails() {
  for (const int peer : peers()) mails_.take(peer);
}

void WorkerCollectives::await(Transfer& transfer, int worker) {
  waiting_for_.store(worker);
  awaited_.store(worker);
  while (!transfer.await()) site_.look();
  waiting_for_.store(-1);
  awaited_.store(-1);
  messages_.fetch_add(1);
}

void WorkerCollectives::await_sends() {
  for (const auto& send : sends_) {
    while (!send->await()) site_.look();
  }
  sends_.clear();
}

void WorkerCollectives::run_small(std::span<const Round> local) {
  const Round& round = local.front();
  if (adds(round)) sum_slice(local, {0, round.elements()}, 0);
  meet(local, peers().empty() ? std::span<const std::byte>() : small_data(local));
  use_small_data(local);
  take_mails();
}

std::span<const std::byte> WorkerCollectives::small_data(std::span<const Round> local) {
  const Round& round = local.front();
  const int first = ranks_.first(ranks_.worker());
  if (adds(round)) return {round.data, round.bytes};
  if (round.kind == CollectiveKind::Broadcast) {
    if (ranks_.worker_of(round.root) != ranks_.worker()) return {};
    return {local[static_cast<std::size_t>(round.root - first)].data, round.bytes};
  }
  small_.clear();
  for (std::size_t i = 0; i < local.size(); ++i) {
    const auto own = bytes_of(local[i], ranks_.slice(round, first + static_cast<int>(i)));
    small_.insert(small_.end(), own.begin(), own.end());
  }
  return small_;
}

void WorkerCollectives::use_small_data(std::span<const Round> local) {
  const Round& round = local.front();
  const int first = ranks_.first(ranks_.worker());
  const Slice all{0, round.elements()};
  if (adds(round)) {
    for (std::size_t i = 0, peer = 0; i < sums_.size(); ++i) {
      // Only this worker's memory is written to.
      sums_[i].data =
          i == me_ ? round.data : const_cast<std::byte*>(mails_.data(peers()[peer++]).data());
    }
    add_workers(round, all);
    if (round.kind == CollectiveKind::AllReduce) return copy_to_all(local, round, all);
    for (std::size_t i = 0; i < local.size(); ++i) {
      const Slice own = ranks_.slice(round, first + static_cast<int>(i));
      copy_bytes(bytes_of(round, own), bytes_of(local[i], own));
    }
  } else if (round.kind == CollectiveKind::Broadcast) {
    const int root = ranks_.worker_of(round.root);
    const std::span<const std::byte> data =
        root == ranks_.worker() ? bytes_of(local[static_cast<std::size_t>(round.root - first)], all)
                                : mails_.data(root);
    for (const Round& to : local) copy_bytes(data, bytes_of(to, all));
  } else {
    for (const int peer : peers()) {
      for (const Round& to : local) {
        copy_bytes(mails_.data(peer), bytes_of(to, ranks_.part(round, peer)));
      }
    }
    for (std::size_t i = 0; i < local.size(); ++i) {
      copy_to_all(local, local[i], ranks_.slice(round, first + static_cast<int>(i)));
    }
  }
}

void WorkerCollectives::add_workers(const Round& round, Slice slice) {
  for (Round& sum : sums_) sum.dtype = round.dtype;
  sum_slice(sums_, ones_, slice, static_cast<int>(me_));
}

std::byte* WorkerCollectives::scratch(std::size_t peer, std::size_t chunk) {
  constexpr std::size_t kLines = kWireChunk / sizeof(Line);
  scratch_.resize(peers().size() * kWindow * kLines);
  return scratch_[(peer * kWindow + chunk % kWindow) * kLines].bytes;
}

void WorkerCollectives::send_chunk(int to, std::uint64_t tag, const Round& from, Slice slice) {
  sends_.push_back(wire_.send(to, tag, bytes_of(from, slice)));
}

void WorkerCollectives::receive_chunk(int from, std::uint64_t tag, const Round& to, Slice slice) {
  results_.push_back(wire_.receive(from, tag, bytes_of(to, slice)));
}

void WorkerCollectives::receive_part(const Round& round, Slice own, std::size_t chunk) {
  const std::size_t bytes = chunk_of(round, own, chunk).size() * size_of(round.dtype);
  for (std::size_t peer = 0; peer < peers().size(); ++peer) {
    parts_[chunk % kWindow * peers().size() + peer] =
        wire_.receive(peers()[peer], tag_of(round, kParts, chunk), {scratch(peer, chunk), bytes});
  }
}

// Adds what the workers have for this chunk of this worker's part.
void WorkerCollectives::add_chunk(std::span<const Round> local, Slice chunk, std::size_t number) {
  const Round& round = local.front();
  sum_slice(local, chunk, 0);
  for (std::size_t i = 0, peer = 0; i < sums_.size(); ++i) {
    if (i == me_) {
      sums_[i].data = bytes_of(round, chunk).data();
      continue;
    }
    await(*parts_[number % kWindow * peers().size() + peer], peers()[peer]);
    sums_[i].data = scratch(peer++, number);
  }
  add_workers(round, {0, chunk.size()});
}

// The result of a chunk comes from a worker that has received this worker's part of it, so the same
// memory can be sent from and received in.
void WorkerCollectives::run_sum(std::span<const Round> local) {
  const Round& round = local.front();
  const bool all = round.kind == CollectiveKind::AllReduce;
  const Slice own = ranks_.part(round, ranks_.worker());
  const std::size_t chunks = chunks_of(round, own);
  for (std::size_t c = 0; c < std::min(chunks, kWindow); ++c) receive_part(round, own, c);
  std::size_t longest = 0;
  for (const int peer : peers()) {
    longest = std::max(longest, chunks_of(round, ranks_.part(round, peer)));
  }
  const auto for_chunks_of_peers = [&](const auto& call) {
    for (std::size_t c = 0; c < longest; ++c) {
      // Every worker begins with another one.
      for (std::size_t i = 0; i < peers().size(); ++i) {
        const int peer = peers()[(i + me_) % peers().size()];
        const Slice chunk = chunk_of(round, ranks_.part(round, peer), c);
        if (chunk.begin < chunk.end) call(peer, c, chunk);
      }
    }
  };
  if (all) {
    for_chunks_of_peers([&](int peer, std::size_t c, Slice chunk) {
      receive_chunk(peer, tag_of(round, kResults, c), round, chunk);
    });
  }
  for_chunks_of_peers([&](int peer, std::size_t c, Slice chunk) {
    sum_slice(local, chunk, 0);
    send_chunk(peer, tag_of(round, kParts, c), round, chunk);
  });
  meet(local, {});
  take_mails();
  for (std::size_t c = 0; c < chunks; ++c) {
    const Slice chunk = chunk_of(round, own, c);
    add_chunk(local, chunk, c);
    if (c + kWindow < chunks) receive_part(round, own, c + kWindow);
    if (!all) continue;
    for (const int peer : peers()) send_chunk(peer, tag_of(round, kResults, c), round, chunk);
    copy_to_all(local, round, chunk);
  }
  if (all) {
    std::size_t next = 0;
    for_chunks_of_peers([&](int peer, std::size_t, Slice chunk) {
      await(*results_[next++], peer);
      copy_to_all(local, round, chunk);
    });
    results_.clear();
  } else {
    for (std::size_t i = 0; i < local.size(); ++i) {
      const Slice mine = ranks_.slice(round, ranks_.first(ranks_.worker()) + static_cast<int>(i));
      copy_bytes(bytes_of(round, mine), bytes_of(local[i], mine));
    }
  }
  await_sends();
}

void WorkerCollectives::run_all_gather(std::span<const Round> local) {
  const Round& round = local.front();
  const auto for_chunks_of = [&](int worker, const auto& call) {
    std::size_t number = 0;
    for (int i = 0; i < ranks_.count(worker); ++i) {
      const Slice slice = ranks_.slice(round, ranks_.first(worker) + i);
      for (std::size_t c = 0; c < chunks_of(round, slice); ++c) {
        call(i, tag_of(round, kResults, number++), chunk_of(round, slice, c));
      }
    }
  };
  for (const int peer : peers()) {
    for_chunks_of(
        peer, [&](int, std::uint64_t tag, Slice chunk) { receive_chunk(peer, tag, round, chunk); });
  }
  for_chunks_of(ranks_.worker(), [&](int i, std::uint64_t tag, Slice chunk) {
    for (const int peer : peers()) {
      send_chunk(peer, tag, local[static_cast<std::size_t>(i)], chunk);
    }
  });
  meet(local, {});
  take_mails();
  for_chunks_of(ranks_.worker(), [&](int i, std::uint64_t, Slice chunk) {
    copy_to_all(local, local[static_cast<std::size_t>(i)], chunk);
  });
  std::size_t next = 0;
  for (const int peer : peers()) {
    for_chunks_of(peer, [&](int, std::uint64_t, Slice chunk) {
      await(*results_[next++], peer);
      copy_to_all(local, round, chunk);
    });
  }
  results_.clear();
  await_sends();
}

void WorkerCollectives::run_broadcast(std::span<const Round> local) {
  const Round& round = local.front();
  const int from = ranks_.worker_of(round.root);
  const Slice all{0, round.elements()};
  const std::size_t chunks = chunks_of(round, all);
  if (from == ranks_.worker()) {
    const Round& root = local[static_cast<std::size_t>(round.root - ranks_.first(from))];
    for (std::size_t c = 0; c < chunks; ++c) {
      for (const int peer : peers()) {
        send_chunk(peer, tag_of(round, kResults, c), root, chunk_of(round, all, c));
      }
    }
    meet(local, {});
    take_mails();
    copy_to_all(local, root, all);
    return await_sends();
  }
  for (std::size_t c = 0; c < chunks; ++c) {
    receive_chunk(from, tag_of(round, kResults, c), round, chunk_of(round, all, c));
  }
  meet(local, {});
  take_mails();
  for (std::size_t c = 0; c < chunks; ++c) {
    await(*results_[c], from);
    copy_to_all(local, round, chunk_of(round, all, c));
  }
  results_.clear();
}

}  // namespace lockstep
