#include "lockstep/data/tuning.h"

#include <charconv>
#include <fstream>
#include <iterator>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr std::string_view kHead = "lockstep pipeline tuning 1\n";
constexpr int kMostThreads = 1 << 16;
constexpr std::int64_t kMostQueue = 1 << 20;
constexpr std::int64_t kMostBytes = std::int64_t{1} << 50;

// Removes a number up to `most` and the `suffix` after it from the front of the text and returns
// the number; nullopt if they are not there.
std::optional<std::int64_t> take_number(std::string_view& text, std::string_view suffix,
                                        std::int64_t most) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value < 0 || value > most) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  if (!text.starts_with(suffix)) return std::nullopt;
  text.remove_prefix(suffix.size());
  return value;
}

}  // namespace

StageTuning PipelineTuning::of(const std::string& stage) const {
  std::lock_guard lock(mutex_);
  const auto known = stages_.find(stage);
  return known == stages_.end() ? StageTuning() : known->second;
}

void PipelineTuning::set(const std::string& stage, const StageTuning& tuning) {
  std::lock_guard lock(mutex_);
  stages_[stage] = tuning;
}

std::string PipelineTuning::text() const {
  std::lock_guard lock(mutex_);
  std::string text(kHead);
  for (const auto& [stage, tuning] : stages_) {
    text += fmt::format("{} threads, queue {} of {} bytes: {}\n", tuning.threads, tuning.queue,
                        tuning.element_bytes, stage);
  }
  return text;
}

bool PipelineTuning::read(std::string_view text) {
  if (!text.starts_with(kHead) || !text.ends_with('\n')) return false;
  text.remove_prefix(kHead.size());
  std::map<std::string, StageTuning> stages;
  while (!text.empty()) {
    const auto threads = take_number(text, " threads, queue ", kMostThreads);
    const auto queue = threads ? take_number(text, " of ", kMostQueue) : std::nullopt;
    const auto bytes = queue ? take_number(text, " bytes: ", kMostBytes) : std::nullopt;
    if (!bytes) return false;
    const std::size_t end = text.find('\n');
    stages[std::string(text.substr(0, end))] = {
        .threads = static_cast<int>(*threads), .queue = *queue, .element_bytes = *bytes};
    text.remove_prefix(end + 1);
  }
  std::lock_guard lock(mutex_);
  stages_ = std::move(stages);
  return true;
}

void PipelineTuning::save(const std::filesystem::path& file) const {
  // The same name every time, so that the leftovers of a process that died are overwritten.
  const std::filesystem::path temporary = file.string() + ".writing";
  std::ofstream stream(temporary, std::ios::binary);
  stream << text();
  stream.close();
  std::error_code error;
  if (stream) std::filesystem::rename(temporary, file, error);
  if (!stream || error) {
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    fail<DataError>("{}: cannot write the tuning of the input pipeline", file.string());
  }
}

bool PipelineTuning::load(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) return false;
  return read(std::string(std::istreambuf_iterator<char>(stream), {}));
}

}  // namespace lockstep
