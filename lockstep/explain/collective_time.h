// How long collectives take on a network: alpha–beta–gamma models of the algorithms that libraries
// use on GPUs, and of what Lockstep's own transports do.
//
// alpha: the latency of a link; beta: seconds per byte; gamma: seconds to add a byte. All times are
// from the moment when the last rank has come until the last one has the result.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/explain/network.h"

namespace lockstep {

enum class CollectiveOp { AllReduce, ReduceScatter, AllGather, Broadcast };
// By the name of its node: "all_reduce". UsageError for others.
CollectiveOp collective_op(std::string_view name);

enum class CollectiveAlgorithm {
  Ring,          // every rank sends to the next one, n - 1 times per phase
  Tree,          // two binary trees at once, each for half of the data, pipelined
  Hierarchical,  // within hosts, between hosts, within hosts
  Direct,        // every rank sends each other one its slice: Lockstep between hosts (comm/remote)
  Best,          // the fastest of the first three, as NCCL chooses by size
};

// Where the ranks of a group are: the same number on each host, the last may have fewer.
struct RankPlaces {
  int ranks = 1;
  int per_host = 1;
  Link within = {};   // between devices of a host
  Link between = {};  // between hosts
  double add_s_per_byte = 0;

  int hosts() const { return (ranks + per_host - 1) / per_host; }
};

// Between n ranks that are connected by equal links, each with its own.
double ring_seconds(CollectiveOp op, int ranks, double bytes, const Link& link,
                    double add_s_per_byte = 0);
double tree_seconds(CollectiveOp op, int ranks, double bytes, const Link& link,
                    double add_s_per_byte = 0);
// Small data (8 KiB or less) goes to all with one message; otherwise every rank sends each other
// one a slice to add up, and the sums back.
double direct_seconds(CollectiveOp op, int ranks, double bytes, const Link& link,
                      double add_s_per_byte = 0);

double collective_seconds(CollectiveAlgorithm algorithm, CollectiveOp op, double bytes,
                          const RankPlaces& places);
// The part of it that would remain on a network without limit to its bandwidth.
double collective_latency(CollectiveAlgorithm algorithm, CollectiveOp op, double bytes,
                          RankPlaces places);

}  // namespace lockstep
