// Buckets: gradients that are communicated together. Few large ones cost little latency; many small
// ones start early and overlap the rest of the backward pass.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace lockstep {

// What a collective costs: seconds before the first byte, and bytes per second after it.
struct LinkSpeed {
  double latency_s = 0;
  double bytes_per_s = 0;
};

struct BucketSizes {
  std::size_t first_bytes = 0;  // of the first bucket, which should start early; 0: chosen
  std::size_t bytes = 0;        // of the others; 0: chosen
};

// Sizes for a link if none were given: the first bucket's transfer takes as long as its latency;
// for the others, latency is a twentieth of the transfer.
BucketSizes choose_bucket_sizes(BucketSizes asked, const LinkSpeed& link);

// Cuts a list of sizes, in the order in which gradients are finished, into buckets: each is closed
// when it has reached its size. Returns the index after the last member of each.
std::vector<std::size_t> cut_into_buckets(std::span<const std::size_t> bytes, BucketSizes sizes);

}  // namespace lockstep
