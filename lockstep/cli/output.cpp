#include "lockstep/cli/output.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <span>
#include <system_error>

#include "lockstep/base/error.h"
#include "lockstep/tensor/host_file.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;
constexpr std::array kStandardOutput = {"-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"};
constexpr int kMostLinks = 40;

[[noreturn]] void fail_with(const char* flag, const std::string& target, int cause) {
  fail<DataError>("{} {}: it cannot be written: {}", flag, target,
                  std::generic_category().message(cause));
}

// The file that a path leads to; empty if there are too many links.
fs::path resolve_links(fs::path path) {
  std::error_code error;
  for (int i = 0; i < kMostLinks; ++i) {
    if (!fs::is_symlink(path, error)) return path;
    const fs::path next = fs::read_symlink(path, error);
    path = next.is_absolute() ? next : path.parent_path() / next;
  }
  return {};
}

fs::path folder_of(const fs::path& file) {
  return file.has_parent_path() ? file.parent_path() : fs::path(".");
}

// A device, a pipe, or an open file of a process (/dev/stderr): written to, never replaced.
bool is_special(const fs::path& target) {
  std::error_code error;
  if (fs::exists(target, error) && !fs::is_regular_file(target, error)) return true;
  fs::path path = target;
  for (int i = 0; i < kMostLinks && fs::is_symlink(path, error); ++i) {
    if (path.string().starts_with("/proc/")) return true;
    const fs::path next = fs::read_symlink(path, error);
    path = next.is_absolute() ? next : path.parent_path() / next;
  }
  return false;
}

void write_through(const char* flag, const std::string& target, const std::string& text) {
  const int descriptor = ::open(target.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (descriptor < 0) fail_with(flag, target, errno);
  std::size_t done = 0;
  int cause = 0;
  while (done < text.size() && cause == 0) {
    const ssize_t count = ::write(descriptor, text.data() + done, text.size() - done);
    if (count >= 0) {
      done += static_cast<std::size_t>(count);
    } else if (errno != EINTR) {
      cause = errno;
    }
  }
  if (::close(descriptor) != 0 && cause == 0) cause = errno;
  if (cause != 0) fail_with(flag, target, cause);
}

}  // namespace

bool is_standard_output(const std::string& target) {
  return std::ranges::count(kStandardOutput, target) > 0;
}

void check_target(const char* flag, const std::string& target) {
  if (target.empty() || is_standard_output(target)) return;
  std::error_code error;
  require(!fs::is_directory(target, error), "{} {}: this is a folder", flag, target);
  if (is_special(target)) {
    require(access(target.c_str(), W_OK) == 0, "{} {}: it cannot be written: {}", flag, target,
            std::generic_category().message(errno));
    return;
  }
  const fs::path file = resolve_links(target);
  require(!file.empty(), "{} {}: its links lead nowhere", flag, target);
  require(access(folder_of(file).c_str(), W_OK | X_OK) == 0,
          "{} {}: the folder {} cannot be written to", flag, target, folder_of(file).string());
  try {
    const FileWriter trial(file);  // removed again when it goes out of scope
  } catch (const DataError& error) {
    fail<UsageError>("{} {}", flag, error.what());
  }
}

void write_target(const char* flag, const std::string& target, const std::string& text) {
  if (is_standard_output(target)) {
    const bool whole = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
    if (!whole || std::fflush(stdout) != 0) fail_with(flag, target, errno);
  } else if (is_special(target)) {
    write_through(flag, target, text);
  } else {
    const std::span<const std::byte> bytes = std::as_bytes(std::span(text));
    try {
      write_file(resolve_links(target), std::span(&bytes, 1));
    } catch (const DataError& error) {
      fail<DataError>("{} {}", flag, error.what());
    }
  }
}

void write_json(const Json& json, const std::string& target) {
  if (target.empty()) return;
  // File names may hold bytes that are not UTF-8.
  const int indent = is_standard_output(target) ? -1 : 2;
  write_target("--json", target,
               json.dump(indent, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace lockstep::cli
