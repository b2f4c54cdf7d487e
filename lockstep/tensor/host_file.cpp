#include "lockstep/tensor/host_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/device/cpu/cpu_device.h"

namespace lockstep {
namespace {

[[noreturn]] void fail_with_cause(const std::filesystem::path& file, const char* what, int cause) {
  fail<DataError>("{}: {}: {}", file.string(), what, std::generic_category().message(cause));
}

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int number() const { return number_; }
  // Closes now; false, with errno set, where the system reports a late write error.
  bool close() { return ::close(std::exchange(number_, -1)) == 0; }

 private:
  int number_;
};

bool write_all(int descriptor, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return true;
}

// Makes a rename last through a power failure. Some file systems cannot sync folders and say
// EINVAL: there is nothing to do about it then.
void sync_folder(const std::filesystem::path& file) {
  const std::filesystem::path folder = file.has_parent_path() ? file.parent_path() : ".";
  Descriptor descriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (descriptor.number() < 0) fail_with_cause(file, "its folder cannot be synced", errno);
  if (::fsync(descriptor.number()) != 0 && errno != EINVAL) {
    fail_with_cause(file, "its folder cannot be synced", errno);
  }
}

}  // namespace

// A new file beside another, under a name of its own, that is deleted unless it is kept.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::filesystem::path& beside)
      : path_(beside), descriptor_(create(beside, path_)) {}
  ~TemporaryFile() {
    if (!kept_) ::unlink(path_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  Descriptor& descriptor() { return descriptor_; }
  void keep() { kept_ = true; }

 private:
  static int create(const std::filesystem::path& beside, std::filesystem::path& path) {
    for (int attempt = 0;; ++attempt) {
      path.replace_filename(
          fmt::format(".{}.{}.{}.tmp", beside.filename().string(), ::getpid(), attempt));
      const int number = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
      if (number >= 0) return number;
      if (errno != EEXIST) fail_with_cause(beside, "cannot be written", errno);
    }
  }

  std::filesystem::path path_;
  Descriptor descriptor_;
  bool kept_ = false;
};

std::shared_ptr<Buffer> read_file(const std::filesystem::path& file) {
  // A pipe that nobody writes to must not make the open wait.
  Descriptor descriptor(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (descriptor.number() < 0) fail_with_cause(file, "cannot be opened", errno);
  struct stat status;
  if (::fstat(descriptor.number(), &status) != 0) fail_with_cause(file, "cannot be read", errno);
  if (!S_ISREG(status.st_mode)) fail<DataError>("{}: is not a regular file", file.string());
  const auto size = static_cast<std::size_t>(status.st_size);
  std::shared_ptr<Buffer> buffer = host().allocate(size);
  std::size_t done = 0;
  while (done < size) {
    const ssize_t got = ::read(descriptor.number(), buffer->data() + done, size - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_with_cause(file, "cannot be read", errno);
    if (got == 0) {
      fail<DataError>("{}: ended after {} of {} bytes while it was read", file.string(), done,
                      size);
    }
    done += static_cast<std::size_t>(got);
  }
  return buffer;
}

void write_file(const std::filesystem::path& file,
                std::span<const std::span<const std::byte>> pieces) {
  FileWriter writer(file);
  for (std::span<const std::byte> piece : pieces) writer.append(piece);
  writer.commit();
}

FileWriter::FileWriter(const std::filesystem::path& file)
    : file_(file), temporary_(std::make_unique<TemporaryFile>(file)) {}

FileWriter::~FileWriter() = default;
FileWriter::FileWriter(FileWriter&&) noexcept = default;
FileWriter& FileWriter::operator=(FileWriter&&) noexcept = default;

void FileWriter::append(std::span<const std::byte> bytes) {
  if (!write_all(temporary_->descriptor().number(), bytes)) {
    fail_with_cause(file_, "cannot be written", errno);
  }
}

void FileWriter::commit() {
  if (::fsync(temporary_->descriptor().number()) != 0 || !temporary_->descriptor().close()) {
    fail_with_cause(file_, "cannot be written", errno);
  }
  if (::rename(temporary_->path().c_str(), file_.c_str()) != 0) {
    fail_with_cause(file_, "cannot be replaced", errno);
  }
  temporary_->keep();
  sync_folder(file_);
}

}  // namespace lockstep
