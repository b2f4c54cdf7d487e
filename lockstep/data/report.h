// PipelineReport: where the time of a pipeline went, stage by stage.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

struct StageReport {
  std::string name;  // "map decode"
  int depth = 0;     // 0: what the consumer asks; its inputs are one deeper
  std::int64_t items = 0;
  std::int64_t bytes = 0;
  double busy_s = 0;          // of all threads together, without its inputs
  double wait_s = 0;          // how long whoever asked it for an element stood and waited
  int threads = 1;            // that may work on it at once
  std::int64_t capacity = 0;  // of its queue; 0 where it has none
  double fill = 0;            // how full the queue was on average, when something was taken out
  std::vector<std::string> decisions;  // what AUTOTUNE chose, and why
  std::vector<std::string> notes;      // what else is worth knowing, a sentence each
};

struct PipelineReport {
  std::vector<StageReport> stages;  // the last one first, inputs behind what they feed
  double seconds = 0;               // since the iterator was made
  double consumer_wait_s = 0;       // of these, how long the consumer waited for elements
  std::int64_t elements = 0;        // that it got
  int cores = 0;
  std::size_t memory_budget = 0;
  std::size_t memory_reserved = 0;         // by queues and caches
  std::int64_t skipped = 0;                // elements passed over because of errors
  std::vector<std::string> skipped_first;  // what was wrong with the first of them

  std::string limiting;  // the stage that limits, or "the consumer"
  std::string advice;    // one or two sentences

  // A table for people.
  std::string text() const;
};

}  // namespace lockstep
