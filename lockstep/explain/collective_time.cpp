#include "lockstep/explain/collective_time.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr double kSmallMessage = 8 << 10;  // comm/remote/mailboxes.h: kMailBytes

double log2_up(int n) {
  double rounds = 0;
  for (int reached = 1; reached < n; reached *= 2) ++rounds;
  return rounds;
}

bool adds(CollectiveOp op) {
  return op == CollectiveOp::AllReduce || op == CollectiveOp::ReduceScatter;
}
// An all-reduce is a reduce-scatter and an all-gather.
double phases(CollectiveOp op) {
  return op == CollectiveOp::AllReduce ? 2 : 1;
}

// All ranks of a flat algorithm, where those of a host leave it through one card or through their
// own: the slowest link that each rank's data passes.
Link flat_link(const RankPlaces& places) {
  if (places.hosts() == 1) return places.within;
  Link link = places.between;
  link.bytes_per_s = std::min(link.bytes_per_s,
                              places.per_host > 1 ? places.within.bytes_per_s : link.bytes_per_s);
  return link;
}

// Rings and trees are laid so that data enters and leaves each host once.
double ring_over_hosts(CollectiveOp op, double bytes, const RankPlaces& places) {
  const Link link = flat_link(places);
  const double inside = places.hosts() == 1
                            ? 0
                            : phases(op) * (places.ranks - places.hosts()) *
                                  (places.between.latency_s - places.within.latency_s);
  return ring_seconds(op, places.ranks, bytes, link, places.add_s_per_byte) - inside;
}

double tree_over_hosts(CollectiveOp op, double bytes, const RankPlaces& places) {
  if (places.hosts() == 1) {
    return tree_seconds(op, places.ranks, bytes, places.within, places.add_s_per_byte);
  }
  // Chains within the hosts, trees between them.
  return tree_seconds(op, places.hosts(), bytes, flat_link(places), places.add_s_per_byte) +
         phases(op) * (std::min(places.per_host, places.ranks) - 1) * places.within.latency_s;
}

double hierarchical(CollectiveOp op, double bytes, const RankPlaces& places) {
  const int inside = std::min(places.per_host, places.ranks);
  const int hosts = places.hosts();
  const double gamma = places.add_s_per_byte;
  if (hosts == 1) return ring_seconds(op, inside, bytes, places.within, gamma);
  // Each rank of a host carries its slice to the same rank of the other hosts, all at once: on a
  // card that they share, each has its part of the bandwidth.
  Link own = places.between;
  if (own.shared_by_host) own.bytes_per_s /= inside;
  const double slice = bytes / inside;
  const auto between = [&](CollectiveOp which) {
    return std::min(ring_seconds(which, hosts, slice, own, gamma),
                    tree_seconds(which, hosts, slice, own, gamma));
  };
  const auto within = [&](CollectiveOp which) {
    return ring_seconds(which, inside, bytes, places.within, gamma);
  };
  switch (op) {
    case CollectiveOp::AllReduce:
      return within(CollectiveOp::ReduceScatter) + between(op) + within(CollectiveOp::AllGather);
    case CollectiveOp::ReduceScatter:
    case CollectiveOp::AllGather:
    case CollectiveOp::Broadcast:
      return within(op) + between(op);
  }
  return 0;
}

// The ranks of a host add up in its memory, and one thread per host talks to the others.
double direct_over_hosts(CollectiveOp op, double bytes, const RankPlaces& places) {
  const int inside = std::min(places.per_host, places.ranks);
  const double local =
      inside == 1 ? 0 : places.within.latency_s + bytes * inside * places.add_s_per_byte;
  if (places.hosts() == 1) return local;
  return local + direct_seconds(op, places.hosts(), bytes, places.between, places.add_s_per_byte);
}

}  // namespace

CollectiveOp collective_op(std::string_view name) {
  if (name == "all_reduce") return CollectiveOp::AllReduce;
  if (name == "reduce_scatter") return CollectiveOp::ReduceScatter;
  if (name == "all_gather") return CollectiveOp::AllGather;
  require(name == "broadcast",
          "'{}' is no collective; use all_reduce, reduce_scatter, all_gather "
          "or broadcast",
          name);
  return CollectiveOp::Broadcast;
}

double ring_seconds(CollectiveOp op, int ranks, double bytes, const Link& link,
                    double add_s_per_byte) {
  if (ranks <= 1) return 0;
  const double n = ranks;
  const double moved = (n - 1) / n * bytes;
  if (op == CollectiveOp::Broadcast) return (n - 1) * link.latency_s + bytes / link.bytes_per_s;
  return phases(op) * ((n - 1) * link.latency_s + moved / link.bytes_per_s) +
         (adds(op) ? moved * add_s_per_byte : 0);
}

double tree_seconds(CollectiveOp op, int ranks, double bytes, const Link& link,
                    double add_s_per_byte) {
  if (ranks <= 1) return 0;
  // A rank sends and receives all of the data once per phase.
  return phases(op) * (log2_up(ranks) * link.latency_s + bytes / link.bytes_per_s) +
         (adds(op) ? bytes * add_s_per_byte : 0);
}

double direct_seconds(CollectiveOp op, int ranks, double bytes, const Link& link,
                      double add_s_per_byte) {
  if (ranks <= 1) return 0;
  const double n = ranks;
  if (bytes <= kSmallMessage) {
    const double sent = op == CollectiveOp::AllGather ? bytes / n : bytes;
    return link.latency_s + (n - 1) * sent / link.bytes_per_s +
           (adds(op) ? (n - 1) * bytes * add_s_per_byte : 0);
  }
  if (op == CollectiveOp::Broadcast) return link.latency_s + (n - 1) * bytes / link.bytes_per_s;
  const double moved = (n - 1) / n * bytes;
  return phases(op) * (link.latency_s + moved / link.bytes_per_s) +
         (adds(op) ? moved * add_s_per_byte : 0);
}

double collective_seconds(CollectiveAlgorithm algorithm, CollectiveOp op, double bytes,
                          const RankPlaces& places) {
  if (places.ranks <= 1) return 0;
  switch (algorithm) {
    case CollectiveAlgorithm::Ring:
      return ring_over_hosts(op, bytes, places);
    case CollectiveAlgorithm::Tree:
      return tree_over_hosts(op, bytes, places);
    case CollectiveAlgorithm::Hierarchical:
      return hierarchical(op, bytes, places);
    case CollectiveAlgorithm::Direct:
      return direct_over_hosts(op, bytes, places);
    case CollectiveAlgorithm::Best:
      return std::min({ring_over_hosts(op, bytes, places), tree_over_hosts(op, bytes, places),
                       hierarchical(op, bytes, places)});
  }
  return 0;
}

double collective_latency(CollectiveAlgorithm algorithm, CollectiveOp op, double bytes,
                          RankPlaces places) {
  places.within.bytes_per_s = places.between.bytes_per_s = std::numeric_limits<double>::infinity();
  places.add_s_per_byte = 0;
  return collective_seconds(algorithm, op, bytes, places);
}

}  // namespace lockstep
