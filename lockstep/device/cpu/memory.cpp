#include "lockstep/device/cpu/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

#include "lockstep/device/cpu/cpu_device.h"
#include "lockstep/device/memory_error.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// The number after a word at the beginning of a line: "MemAvailable:  1234 kB".
std::optional<std::size_t> number_after(const fs::path& file, const std::string& word) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    std::istringstream words(line);
    std::string first;
    std::size_t value = 0;
    if (words >> first >> value && first == word) return value;
  }
  return std::nullopt;
}

// The one number that a file holds; "max" is none.
std::optional<std::size_t> number_in(const fs::path& file) {
  std::ifstream stream(file);
  std::size_t value = 0;
  return stream >> value ? std::optional(value) : std::nullopt;
}

std::size_t less(std::size_t from, std::size_t amount) {
  return from - std::min(from, amount);
}

// What a version of control groups calls things: files of a group, and lines of its memory.stat.
struct GroupNames {
  const char* limit;
  const char* used;
  const char* cached;  // files and what lies in shared memory
  const char* shared;  // of that: has no file to be read again from
  const char* slab;    // the kernel's own that it can give back
};

constexpr GroupNames kVersion1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache",
                               "total_shmem", "total_slab_reclaimable"};
constexpr GroupNames kVersion2{"memory.max", "memory.current", "file", "shmem", "slab_reclaimable"};

// The limit of a group itself. Version 1 says "none" with a number that no machine has.
std::size_t limit_of(const fs::path& group, const GroupNames& names) {
  return number_in(group / names.limit).value_or(kUnknownMemory);
}

std::size_t left_in(const fs::path& group, const GroupNames& names) {
  const auto limit = number_in(group / names.limit);
  const auto used = number_in(group / names.used);
  if (!limit || !used) return kUnknownMemory;
  const auto part = [&](const char* name) {
    return number_after(group / "memory.stat", name).value_or(0);
  };
  const std::size_t reclaimable = less(part(names.cached), part(names.shared)) + part(names.slab);
  return less(*limit, less(*used, reclaimable));
}

// What a group has: its limit, or what is left of it.
using BytesOf = std::size_t (*)(const fs::path& group, const GroupNames& names);

// The least that a group or one of those that it lies in has, up to the root of what is mounted. A
// path that leaves the process's own root ("/../a") or is not mounted there (in a container) leaves
// the root alone.
std::size_t least_around(const fs::path& mount, const fs::path& path, const GroupNames& names,
                         BytesOf bytes_of) {
  std::size_t least = bytes_of(mount, names);
  fs::path group = mount;
  for (const fs::path& each : path.relative_path()) {
    if (each == "..") break;
    group /= each;
    least = std::min(least, bytes_of(group, names));
  }
  return least;
}

// The least of this process's groups, as /proc/self/cgroup names them: "4:memory:/a/b" or
// "4:cpu,memory:/a" in version 1, "0::/a/b" in version 2.
std::size_t least_of_groups(const fs::path& root, BytesOf bytes_of) {
  const fs::path mount = root / "sys/fs/cgroup";
  std::size_t least = kUnknownMemory;
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = fmt::format(",{},", line.substr(first + 1, second - first - 1));
    const std::string path = line.substr(second + 1);
    if (controllers == ",,") {
      least = std::min(least, least_around(mount, path, kVersion2, bytes_of));
    } else if (controllers.find(",memory,") != std::string::npos) {
      least = std::min(least, least_around(mount / "memory", path, kVersion1, bytes_of));
    }
  }
  return least;
}

}  // namespace

std::size_t machine_memory(const std::filesystem::path& root) {
  const auto total = number_after(root / "proc/meminfo", "MemTotal:");
  return std::min(total ? *total * 1024 : kUnknownMemory, least_of_groups(root, limit_of));
}

std::size_t available_memory(const std::filesystem::path& root) {
  const auto free = number_after(root / "proc/meminfo", "MemAvailable:");
  return std::min(free ? *free * 1024 : kUnknownMemory, least_of_groups(root, left_in));
}

void expect_memory_left(std::size_t bytes, const std::string& what) {
  void* const memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    fail<MemoryError>(
        "{}: the system gives no {} MiB more, which kernels may take to work in; use a smaller "
        "batch, or let the process have more memory (ulimit -v)",
        what, bytes >> 20);
  }
  ::munmap(memory, bytes);
}

void expect_memory_to_run(const std::string& what) {
  constexpr std::size_t kStack = std::size_t{8} << 20;
  constexpr std::size_t kScratch = std::size_t{48} << 20;
  expect_memory_left(available_cores().size() * kStack + kScratch, what);
}

}  // namespace lockstep
