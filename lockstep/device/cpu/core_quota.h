// How many cores' worth of processor time the system grants this process: containers often see all
// cores of their machine, but may use only some of their time.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep {

// The processor time that a control group grants, in cores, read from the text of its cpu.max
// ("150000 100000" grants one and a half: rounded up to 2); 0: without limit or not understood.
int granted_cores(const std::string& cpu_max);

// The smallest limit of this process's control groups and those above them, in cores; 0: without
// limit. `root` is where /proc and /sys are.
int core_quota(const std::filesystem::path& root = "/");

// So many of the cores, side by side, beginning at core `first` modulo their number: processes that
// begin at different ones do not all run on the same.
std::vector<int> some_cores(const std::vector<int>& cores, int count, int first);

}  // namespace lockstep
