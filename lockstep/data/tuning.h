// PipelineTuning: what AUTOTUNE learned about a pipeline: threads and queue lengths, nothing that
// affects the elements. A Dataset owns one, so that each pass starts from what the previous one
// learned; a file carries it to the next run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

struct StageTuning {
  int threads = 0;                     // 0: unknown
  std::int64_t queue = 0;              // elements; 0: unknown
  std::int64_t element_bytes = 0;      // size of an element in the queue
  std::int64_t no_fewer_until_ns = 0;  // this process's clock: fewer threads proved too few
  bool operator==(const StageTuning&) const = default;
};

// Several iterators may use it at once.
class PipelineTuning {
 public:
  // Keyed by the stage's path in the pipeline: "0 prefetch/0 batch/0 map decode".
  StageTuning of(const std::string& stage) const;
  void set(const std::string& stage, const StageTuning& tuning);

  // One line per stage: "16 threads, queue 4 of 38535168 bytes: 0 prefetch/0 batch".
  std::string text() const;
  // Returns false and changes nothing if text() did not write this text.
  bool read(std::string_view text);

  // Replaces the file atomically; DataError if it cannot be written.
  void save(const std::filesystem::path& file) const;
  // False if the file does not exist or is damaged; the pipeline then tunes from scratch.
  bool load(const std::filesystem::path& file);

 private:
  mutable std::mutex mutex_;
  std::map<std::string, StageTuning> stages_;
};

}  // namespace lockstep
