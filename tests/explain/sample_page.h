// A page with everything on it, for tests.
#pragma once

#include <cmath>
#include <string>

#include "lockstep/explain/page.h"

namespace lockstep::testing {

inline Explanation sample_explanation() {
  return {.run = "runs/last",
          .replicas = 4,
          .seconds = 100,
          .step_ms = 12.5,
          .speed_up = 2.4,
          .possible = 3.4,
          .lost = {{Cause::SmallPieces, 12, 0.12, ""},
                   {Cause::Bandwidth, 15, 0.15, "bucket 3 of 5"},
                   {Cause::Input, 8, 0.08, "map 'decode' (stage 2)"},
                   {Cause::Imbalance, 5, 0.05, "cpu:1 since step 1200"}},
          .advice = {{.change = "batch 32 -> 128 per replica",
                      .gain = "2.4x -> 3.3x on 4 devices; memory 1.1 -> 3.9 GiB of 16",
                      .speed_up = 1.38,
                      .sure = 0.85,
                      .command = "lockstep train --model resnet50 --batch-per-replica 128"}},
          .predicted =
              Predicted{.step_ms = 12.1, .low_ms = 11.5, .high_ms = 12.9, .measured_ms = 12.5}};
}

inline page::Timeline sample_timeline(int tracks = 4, int spans = 50) {
  page::Timeline timeline{.step_ms = 12.5, .tracks = {}};
  for (int t = 0; t < tracks; ++t) {
    page::TimelineTrack track{
        .name = "worker " + std::to_string(t / 2) + " cpu:" + std::to_string(t % 2),
        .spans = {},
        .clock_error_ms = t < 2 ? 0.0 : 0.25};
    for (int s = 0; s < spans; ++s) {
      const double length = 12.5 / spans;
      track.spans.push_back({.name = "dense_" + std::to_string(s),
                             .kind = static_cast<SpanKind>(s % 6),
                             .begin_ms = s * length,
                             .end_ms = (s + 1) * length,
                             .critical = t == s % tracks});
    }
    timeline.tracks.push_back(std::move(track));
  }
  return timeline;
}

inline PageContents sample_page() {
  PageContents contents{.title = "a run", .subtitle = "resnet50, batch 128", .global_batch = 128};
  contents.explanation = sample_explanation();
  contents.speed_up = {{.replicas = 1, .measured = 1.0, .predicted = 1.0},
                       {.replicas = 2, .measured = 1.7, .predicted = 1.75},
                       {.replicas = 4, .measured = 2.4, .predicted = 2.5},
                       {.replicas = 8, .predicted = 3.9}};
  contents.timeline = sample_timeline();
  contents.input = {{"batch", 0.1, 0.8, 1}, {"map decode", 0.92, 0.05, 4}, {"files", 0.2, 0.7, 1}};
  page::Memory memory;
  for (int i = 0; i < 2000; ++i) {
    const double up = 1000 - std::abs(i - 1000.0);
    memory.instructions.push_back(
        {"node_" + std::to_string(i), {4e8, 8e8, i > 1000 ? 1e8 : 0.0, up * 2e6, 5e7}});
  }
  memory.peak = {{"conv1", 9e8}, {"conv2", 1.1e9}};
  memory.capacity = 16.0 * (1 << 30);
  contents.memory = memory;
  for (int r = 0; r < 4; ++r) {
    contents.replicas.push_back({"cpu:" + std::to_string(r),
                                 {{"compute", 0.6 + 0.05 * r},
                                  {"communication", 0.15},
                                  {"input", 0.05},
                                  {"wait", 0.2 - 0.05 * r}}});
  }
  page::Chart loss{
      .title = "loss", .x_label = "epoch", .curves = {{"loss", {}, {}}, {"val_loss", {}, {}}}};
  for (int e = 0; e < 30; ++e) {
    for (page::Curve& curve : loss.curves) {
      curve.x.push_back(e + 1);
      curve.y.push_back(2.3 * std::exp(-0.1 * e) + (&curve == &loss.curves[1] ? 0.2 : 0.0));
    }
    const double noise = 50 * std::exp(0.1 * e);
    contents.noise.push_back({e * 100.0, noise, noise * 0.7, noise * 1.5});
  }
  contents.charts = {loss};
  contents.predictions = {{"8 replicas", 9.5, 9.9}};
  return contents;
}

}  // namespace lockstep::testing
