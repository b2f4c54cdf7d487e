// Steps made by hand, for the tests of predictions.
#pragma once

#include "lockstep/explain/measured_step.h"
#include "lockstep/explain/simulate.h"

namespace lockstep {

inline MeasuredInstruction kernel(const char* name, double fixed, double per_sample,
                                  std::vector<int> after, int stream = kComputeStream) {
  return {.name = name,
          .op = "matmul",
          .stream = stream,
          .after = std::move(after),
          .seconds = {.fixed = fixed, .per_sample = per_sample}};
}

inline MeasuredInstruction gradient_sum(std::int64_t bytes, std::vector<int> after) {
  MeasuredInstruction made{.name = "all_reduce",
                           .op = "all_reduce",
                           .stream = kCommunicationStream,
                           .after = after,
                           .collective = "all_reduce",
                           .wire_bytes = bytes};
  for (const int each : after) {
    made.carries.push_back({.bytes = bytes / std::ssize(after), .after = each});
  }
  return made;
}

// Forward, and a backward pass of three layers; each layer's gradients are summed and applied.
inline MeasuredStep made_step(const char* device = "cuda") {
  MeasuredStep step;
  step.model = "made";
  step.device = device;
  step.hardware = "nothing";
  step.precision = "float32";
  step.batch = 32;
  step.memory = {.fixed = 1e6, .per_sample = 1e4};
  step.instructions = {kernel("forward", 1e-3, 1e-4, {}),
                       kernel("grad_3", 2e-3, 1e-4, {0}),
                       gradient_sum(4'000'000, {1}),
                       kernel("update_3", 1e-4, 0, {2}, kCommunicationStream),
                       kernel("grad_2", 2e-3, 1e-4, {1}),
                       gradient_sum(8'000'000, {4}),
                       kernel("update_2", 2e-4, 0, {5}, kCommunicationStream),
                       kernel("grad_1", 1e-3, 1e-4, {4}),
                       gradient_sum(1'000'000, {7}),
                       kernel("update_1", 1e-5, 0, {8}, kCommunicationStream)};
  return step;
}

inline Scenario made_scenario(int replicas, double bytes_per_s = 1e9, double latency_s = 1e-5) {
  const Link link{
      .name = "made", .latency_s = latency_s, .bytes_per_s = bytes_per_s, .shared_by_host = true};
  return {.replicas = replicas, .per_host = 1, .within = link, .between = link};
}

}  // namespace lockstep
