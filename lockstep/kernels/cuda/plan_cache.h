// PlanCache: which algorithm of a library was chosen for which problem, kept in a file.
//
// Choices are made by the clock, and algorithms differ in the last bits: what was chosen once stays
// chosen on a machine, so that its runs give the same bits. Keys name the GPU, the library and its
// version, and the problem; values are the business of who chooses. The file is text, a choice a
// line. It appears whole or not at all, several processes may write to one, and where it cannot be
// read or written, or is no such file, choices are made anew: a cache is no reason to fail.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <string>

namespace lockstep {

class PlanCache {
 public:
  // An empty path: in memory alone.
  explicit PlanCache(std::string path) : path_(std::move(path)) {}

  // What was chosen for a problem, here or, looked up anew, in the file.
  std::optional<std::string> find(const std::string& key);
  // Keeps a choice and returns the one that stands: that of another process where it was first.
  // Neither text has tabs or ends of lines.
  std::string keep(const std::string& key, const std::string& value);
  // Forgets a choice that has turned out not to work, in the file too.
  void forget(const std::string& key);

 private:
  void read();
  void write() const;

  std::string path_;
  std::mutex mutex_;
  std::map<std::string, std::string> choices_;
};

}  // namespace lockstep
