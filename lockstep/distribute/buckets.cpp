#include "lockstep/distribute/buckets.h"

#include <algorithm>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr double kLatencyShare = 0.05;
constexpr std::size_t kSmallest = 1024;

}  // namespace

BucketSizes choose_bucket_sizes(BucketSizes asked, const LinkSpeed& link) {
  ensure(link.latency_s > 0 && link.bytes_per_s > 0, "a link of {} s and {} bytes/s",
         link.latency_s, link.bytes_per_s);
  const double in_flight = link.latency_s * link.bytes_per_s;
  if (asked.first_bytes == 0) {
    asked.first_bytes = std::max(kSmallest, static_cast<std::size_t>(in_flight));
  }
  if (asked.bytes == 0) {
    asked.bytes = std::max(kSmallest, static_cast<std::size_t>(in_flight / kLatencyShare));
  }
  return asked;
}

std::vector<std::size_t> cut_into_buckets(std::span<const std::size_t> bytes, BucketSizes sizes) {
  std::vector<std::size_t> ends;
  std::size_t filled = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    filled += bytes[i];
    const std::size_t enough = ends.empty() ? sizes.first_bytes : sizes.bytes;
    if (filled < enough && i + 1 < bytes.size()) continue;
    ends.push_back(i + 1);
    filled = 0;
  }
  return ends;
}

}  // namespace lockstep
