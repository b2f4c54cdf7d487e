#include "lockstep/comm/host_identity.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>

namespace lockstep {
namespace {

std::string target_of(const char* link) {
  std::error_code ignored;
  return std::filesystem::read_symlink(link, ignored).string();
}

}  // namespace

std::string host_identity() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  file >> boot;
  return fmt::format("{} {} {}", boot, target_of("/proc/self/ns/pid"),
                     target_of("/proc/self/ns/net"));
}

}  // namespace lockstep
