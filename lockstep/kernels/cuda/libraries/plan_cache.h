// PlanCache: which algorithm of a library was chosen for which problem, stored in a file.
//
// Choices depend on measured times, and algorithms differ in the last bits; so that runs on a
// machine give the same bits, a choice is kept once it is made. Keys name the GPU, the library and
// its version, and the problem; values are up to the caller. The file is text, one choice per line.
// It is replaced atomically, and several processes may share it. If it cannot be read or written,
// or is not such a file, problems are measured again: a cache is no reason to fail.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <string>

namespace lockstep {

class PlanCache {
 public:
  // An empty path: in memory only.
  explicit PlanCache(std::string path) : path_(std::move(path)) {}

  // The choice for a problem; if it is not known yet, the file is read again.
  std::optional<std::string> find(const std::string& key);
  // Keeps a choice and returns the valid one: another process's if that was first. Neither text may
  // contain tabs or line breaks.
  std::string keep(const std::string& key, const std::string& value);
  // Removes a choice that turned out not to work, also from the file.
  void forget(const std::string& key);

 private:
  void read();
  void write() const;

  std::string path_;
  std::mutex mutex_;
  std::map<std::string, std::string> choices_;
};

}  // namespace lockstep
