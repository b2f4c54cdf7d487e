// PipelineReport: where a pipeline spent its time, stage by stage.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

struct StageReport {
  std::string name;  // "map decode"
  int depth = 0;     // 0: the last stage, which the consumer reads; its inputs are one deeper
  std::int64_t items = 0;
  std::int64_t bytes = 0;
  double busy_s = 0;                   // summed over threads, without its inputs
  double wait_s = 0;                   // how long its consumer waited for elements
  int threads = 1;                     // that may work on it at once
  std::int64_t capacity = 0;           // of its queue; 0 if it has none
  double fill = 0;                     // average length of the queue when an element was taken
  std::vector<std::string> decisions;  // what AUTOTUNE chose, and why
  std::vector<std::string> notes;      // anything else worth knowing, one sentence each
};

struct PipelineReport {
  std::vector<StageReport> stages;  // the last one first, each followed by its inputs
  double seconds = 0;               // since the iterator was created
  double consumer_wait_s = 0;       // how much of that the consumer waited for elements
  std::int64_t elements = 0;        // that the consumer received
  int cores = 0;
  std::size_t memory_budget = 0;
  std::size_t memory_reserved = 0;         // by queues and caches
  std::int64_t skipped = 0;                // elements skipped because of errors
  std::vector<std::string> skipped_first;  // the first of those errors

  std::string limiting;  // the stage that is the bottleneck, or "the consumer"
  std::string advice;    // one or two sentences

  // The report as a table to print.
  std::string text() const;
};

}  // namespace lockstep
