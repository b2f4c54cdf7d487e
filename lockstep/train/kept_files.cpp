#include "lockstep/train/kept_files.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/train/checkpoint_files.h"

namespace lockstep {

std::function<void()> KeptFiles::add(const std::filesystem::path& file, std::optional<double> value,
                                     std::int64_t keep, const Better& better) {
  std::erase_if(files_, [](const File& each) { return each.state->removed.load(); });
  File added{.path = file, .value = value};
  const auto same = std::ranges::find(files_, file, &File::path);
  if (same != files_.end()) {  // replaced by what is written now
    added.state = same->state;
    files_.erase(same);
  }
  files_.push_back(added);
  return [files = files_, keep, better] {
    files.back().state->written = true;
    remove_surplus(files, keep, better);
  };
}

void KeptFiles::remove_surplus(const std::vector<File>& files, std::int64_t keep,
                               const Better& better) {
  const File* best = nullptr;
  std::vector<const File*> present;
  for (const File& file : files) {
    if (!file.state->written) continue;
    present.push_back(&file);
    const bool first = best == nullptr && file.value;
    if (first || (file.value && better(*file.value, *best->value))) best = &file;
  }
  for (std::int64_t i = 0; i + keep < std::ssize(present); ++i) {
    const File* const file = present[static_cast<std::size_t>(i)];
    if (file == best) continue;
    remove_checkpoint(file->path);
    file->state->removed = true;
  }
}

nlohmann::json KeptFiles::save_state(const std::filesystem::path& folder) const {
  auto list = nlohmann::json::array();
  for (const File& file : files_) {
    const bool present = file.state->written || &file == &files_.back();
    if (file.state->removed || !present) continue;
    nlohmann::json entry = {{"path", file.path.lexically_proximate(folder).string()}};
    if (file.value) entry["value"] = *file.value;
    list.push_back(std::move(entry));
  }
  return list;
}

void KeptFiles::restore_state(const nlohmann::json& state, const std::filesystem::path& folder) {
  if (!state.is_array()) return;
  for (const auto& entry : state) {
    if (!entry.is_object() || !entry.contains("path") || !entry["path"].is_string()) continue;
    File file{.path = folder / entry["path"].get<std::string>(), .value = {}};
    if (entry.contains("value") && entry["value"].is_number()) file.value = entry["value"];
    file.state->written = true;
    files_.push_back(std::move(file));
  }
}

}  // namespace lockstep
