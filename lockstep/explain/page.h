// One self-contained page about a run: HTML with its style, its pictures (SVG) and a few lines of
// script inline. It loads nothing, so it can be opened from a file, sent by mail or attached to a
// bug report; it fits a phone, and is dark where the reader's system is.
//
// PageContents is made of parts; what is not known is left out, and so is its figure. All texts may
// hold anything: they are shown, never interpreted.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/explain/explanation.h"
#include "lockstep/explain/scaling_curve.h"
#include "lockstep/explain/step_memory.h"
#include "lockstep/profile/recorder.h"

namespace lockstep {

namespace page {

// How much faster than one device so many replicas are; ideal is their number.
struct SpeedUp {
  int replicas = 1;
  std::optional<double> measured = {};
  std::optional<double> predicted = {};
};

// What a track did in the step; milliseconds since the step began.
struct TimelineSpan {
  std::string name;
  SpanKind kind = SpanKind::Compute;
  double begin_ms = 0;
  double end_ms = 0;
  bool critical = false;  // on the critical path
};

struct TimelineTrack {
  std::string name;  // "cpu:0", "worker 1 cuda:0 communication"
  std::vector<TimelineSpan> spans;
  // How far this track's clock may be off; 0: it is the clock of the page.
  double clock_error_ms = 0;
};

struct Timeline {
  double step_ms = 0;
  std::vector<TimelineTrack> tracks;
};

// A stage of the input: the share of their time that its threads were busy, and the share of the
// time that the stage after it waited for it.
struct InputStage {
  std::string name;
  double busy = 0;
  double waiting = 0;
  int threads = 1;
};

using Memory = StepMemory;

// Where a replica's time went: names and shares, which add up to 1.
struct Replica {
  std::string name;
  std::vector<std::pair<std::string, double>> parts;
};

// A line of a chart; a value that is not finite is a gap.
struct Curve {
  std::string name;
  std::vector<double> x;
  std::vector<double> y;
};

struct Chart {
  std::string title;    // "loss"
  std::string x_label;  // "epoch"
  std::vector<Curve> curves;
};

// The gradient noise scale, in samples, with the interval that it is likely in.
struct NoisePoint {
  double step = 0;
  double samples = 0;
  double low = 0;
  double high = 0;
};

struct Prediction {
  std::string what;  // "step of 2 replicas"
  double predicted_ms = 0;
  double measured_ms = 0;
};

}  // namespace page

struct PageContents {
  std::string title;     // "run 2026-01-31"; empty: the explanation's run
  std::string subtitle;  // "resnet50, batch 256 on 4 x NVIDIA H200"
  std::optional<Explanation> explanation = {};
  std::vector<page::SpeedUp> speed_up = {};
  std::string speed_up_note = {};           // what the predictions take for granted
  std::optional<LossOutlook> outlook = {};  // how much sooner a loss is reached
  std::optional<page::Timeline> timeline = {};
  std::vector<page::InputStage> input = {};
  std::optional<page::Memory> memory = {};
  std::vector<page::Replica> replicas = {};
  std::vector<page::Chart> charts = {};
  std::vector<page::NoisePoint> noise = {};
  double global_batch = 0;  // to compare the noise scale with; 0: unknown
  std::vector<page::Prediction> predictions = {};
};

// The page's text, in UTF-8.
std::string page_html(const PageContents& contents);

}  // namespace lockstep
