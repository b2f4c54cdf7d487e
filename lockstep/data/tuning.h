// PipelineTuning: what AUTOTUNE found out about a pipeline: threads and lengths of queues, nothing
// that elements depend on. A Dataset has one, so that a pass begins with what the one before
// learned; in a file it travels from run to run.
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
  int threads = 0;                     // 0: not known
  std::int64_t queue = 0;              // elements; 0: not known
  std::int64_t element_bytes = 0;      // of the queue's
  std::int64_t no_fewer_until_ns = 0;  // of this process's clock: fewer threads proved too few
  bool operator==(const StageTuning&) const = default;
};

// Several iterators may use it at once.
class PipelineTuning {
 public:
  // By a stage's place in the pipeline: "0 prefetch/0 batch/0 map decode".
  StageTuning of(const std::string& stage) const;
  void set(const std::string& stage, const StageTuning& tuning);

  // A line for each stage: "16 threads, queue 4 of 38535168 bytes: 0 prefetch/0 batch".
  std::string text() const;
  // False where the text is none that text() wrote; nothing is taken from it then.
  bool read(std::string_view text);

  // Written to a file, which is replaced as a whole; DataError where it cannot be written.
  void save(const std::filesystem::path& file) const;
  // False where there is no such file or it is damaged: then there is nothing to begin with, and
  // the pipeline finds out anew.
  bool load(const std::filesystem::path& file);

 private:
  mutable std::mutex mutex_;
  std::map<std::string, StageTuning> stages_;
};

}  // namespace lockstep
