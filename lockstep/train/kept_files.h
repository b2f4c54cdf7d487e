// KeptFiles: the checkpoints that a callback has written, of which it keeps the newest and the
// best.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <vector>

namespace lockstep {

class KeptFiles {
 public:
  using Better = std::function<bool(double value, double than)>;

  // A file that is about to be written. The result is to be called when it is on disk, by any
  // thread, before the next one is: it removes what is neither among the newest `keep` files nor
  // the best by `value`.
  std::function<void()> add(const std::filesystem::path& file, std::optional<double> value,
                            std::int64_t keep, const Better& better);

  // A list of the files, including one that is about to be written, relative to a folder.
  nlohmann::json save_state(const std::filesystem::path& folder) const;
  // What is not such a list is ignored: files that are unknown are never removed.
  void restore_state(const nlohmann::json& state, const std::filesystem::path& folder);

 private:
  struct State {
    std::atomic<bool> written = false;
    std::atomic<bool> removed = false;
  };
  struct File {
    std::filesystem::path path;
    std::optional<double> value;
    std::shared_ptr<State> state = std::make_shared<State>();
  };
  static void remove_surplus(const std::vector<File>& files, std::int64_t keep,
                             const Better& better);

  std::vector<File> files_;  // the newest last
};

}  // namespace lockstep
