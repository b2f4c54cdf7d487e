#include "lockstep/data/sources/random_access.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

std::string cause(int number) {
  return std::generic_category().message(number);
}

class FileBytes final : public RandomAccess {
 public:
  explicit FileBytes(const std::filesystem::path& file) : name_(file.string()) {
    // Do not block on a pipe that nobody writes to.
    descriptor_ = ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor_ < 0) fail<DataError>("{}: cannot be opened: {}", name_, cause(errno));
    try {
      inspect();
    } catch (...) {
      ::close(descriptor_);
      throw;
    }
  }
  ~FileBytes() override { ::close(descriptor_); }
  FileBytes(const FileBytes&) = delete;
  FileBytes& operator=(const FileBytes&) = delete;

  const std::string& name() const override { return name_; }
  std::uint64_t size() const override { return size_; }

  std::size_t read(std::uint64_t offset, std::span<char> to) const override {
    std::size_t done = 0;
    while (done < to.size()) {
      const ssize_t got = ::pread(descriptor_, to.data() + done, to.size() - done,
                                  static_cast<off_t>(offset + done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) {
        fail<DataError>("{}: byte {}: cannot be read: {}", name_, offset + done, cause(errno));
      }
      if (got == 0) break;
      done += static_cast<std::size_t>(got);
    }
    return done;
  }

 private:
  void inspect() {
    struct stat status;
    if (::fstat(descriptor_, &status) != 0) {
      fail<DataError>("{}: cannot be read: {}", name_, cause(errno));
    }
    if (S_ISDIR(status.st_mode)) fail<DataError>("{}: is a folder, not a file", name_);
    if (!S_ISREG(status.st_mode)) fail<DataError>("{}: is not a regular file", name_);
    size_ = static_cast<std::uint64_t>(status.st_size);
    ::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_SEQUENTIAL);  // a hint: may fail
  }

  std::string name_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
};

class MemoryBytes final : public RandomAccess {
 public:
  MemoryBytes(std::string_view bytes, std::string name) : bytes_(bytes), name_(std::move(name)) {}

  const std::string& name() const override { return name_; }
  std::uint64_t size() const override { return bytes_.size(); }

  std::size_t read(std::uint64_t offset, std::span<char> to) const override {
    if (offset >= bytes_.size()) return 0;
    const std::size_t count = std::min(to.size(), bytes_.size() - static_cast<std::size_t>(offset));
    if (count > 0) std::memcpy(to.data(), bytes_.data() + offset, count);
    return count;
  }

 private:
  std::string_view bytes_;
  std::string name_;
};

}  // namespace

std::unique_ptr<RandomAccess> open_file(const std::filesystem::path& file) {
  return std::make_unique<FileBytes>(file);
}

std::unique_ptr<RandomAccess> view_bytes(std::string_view bytes, std::string name) {
  return std::make_unique<MemoryBytes>(bytes, std::move(name));
}

}  // namespace lockstep
