#include "bench/prediction/published.h"

#include <fmt/core.h>

#include "bench/prediction/table.h"
#include "lockstep/explain/predict.h"
#include "lockstep/explain/what_if.h"

namespace lockstep {
namespace {

// Goyal et al. 2017, "Accurate, Large Minibatch SGD": ResNet-50, 32 pictures per P100, eight of
// them per server with NVLink, servers with 50 Gbit/s Ethernet. 90 epochs of 1.28 million pictures
// took 29 hours on 8 and one hour on 256: 232 and 256 ms per step.
void goyal(MeasuredStep step, PredictionTable& table) {
  const double on_8_s = 29 * 3600.0 / (90 * 1'281'167.0 / 256);
  const double on_256_s = 3600.0 / (90 * 1'281'167.0 / 8192);
  step.device = "cuda";
  step.jitter.clear();
  step.side_by_side.clear();
  step.host_collectives.clear();
  step.host_seconds = {};
  step.meet_seconds = 0;
  const Scenario on_8{.replicas = 8,
                      .per_host = 8,
                      .within = parse_link("nvlink1"),
                      .between = parse_link("50Gbit")};
  // So fast that eight take as long as published.
  double factor = 1;
  for (int i = 0; i < 50; ++i) {
    factor *= predict(with_faster_device(step, factor), on_8).step_s / on_8_s;
  }
  Scenario on_256 = on_8;
  on_256.replicas = 256;
  const SimulatedStep result = predict(with_faster_device(step, factor), on_256);
  table.row("Goyal et al.: ResNet-50, 256 P100, from 8", {result.step_s * 1e3}, {on_256_s * 1e3});
}

// MLPerf Training 3.0 and 3.1, NVIDIA's ResNet-50 (github.com/mlcommons/training_results_v3.0 and
// _v3.1, result files of dgxh100_ngc23.04_mxnet, dgxh100_n8_ngc23.04_mxnet and
// coreweave_hgxh100_n448_ngc23.04_mxnet; pictures per GPU in the config files): 8 H100 with 408
// pictures each train 56,050 per second, 64 with 50 each 294,700, and 3,584 with 16 each 2,821 per
// GPU. Gradients are 16-bit and summed after the backward pass, in one group. A DGX H100 has
// NVLink 4 and eight NDR InfiniBand cards. What a step takes besides communication is a line
// through the first two points.
void mlperf(PredictionTable& table) {
  constexpr double kGradientBytes = 25'557'032 * 2.0;
  const auto step_with = [&](PerPiece seconds) {
    MeasuredStep step;
    step.model = "resnet50";
    step.device = "cuda";
    step.batch = 16;
    step.instructions = {{.name = "forward and backward", .op = "all", .seconds = seconds},
                         {.name = "all_reduce",
                          .op = "all_reduce",
                          .stream = kCommunicationStream,
                          .after = {0},
                          .collective = "all_reduce",
                          .wire_bytes = static_cast<std::int64_t>(kGradientBytes)}};
    return step;
  };
  const auto scenario = [](int replicas, double samples) {
    return Scenario{.replicas = replicas,
                    .per_host = 8,
                    .samples = samples,
                    .within = parse_link("nvlink4"),
                    .between = parse_link("8xib-ndr")};
  };
  const auto communication = [&](int replicas) {
    return simulate(step_with({}), scenario(replicas, 16)).step_s;
  };
  const double on_8_s = 8 * 408 / 56'050.0 - communication(8);
  const double on_64_s = 64 * 50 / 294'700.0 - communication(64);
  PerPiece seconds;
  seconds.per_sample = (on_8_s - on_64_s) / (408 - 50);
  seconds.fixed = on_64_s - 50 * seconds.per_sample;
  const SimulatedStep result = simulate(step_with(seconds), scenario(3584, 16));
  table.row("MLPerf: ResNet-50, 3,584 H100, from 8 and 64", {result.step_s * 1e3},
            {16 / 2821.0 * 1e3});
  fmt::print(
      "  {:.0f} pictures per second and GPU, published 2,821; {:.3f} ms of a step do not "
      "depend on the batch, communication takes {:.3f} ms\n",
      16 / result.step_s, seconds.fixed * 1e3, result.exposed_s * 1e3);
}

}  // namespace

void published(const MeasuredStep& resnet50) {
  PredictionTable table;
  goyal(resnet50, table);
  mlperf(table);
}

}  // namespace lockstep
