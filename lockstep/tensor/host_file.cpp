#include "lockstep/tensor/host_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
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
  void release() { number_ = -1; }
  // Closes now; false, with errno set, if the system reports a late write error.
  bool close() { return ::close(std::exchange(number_, -1)) == 0; }

 private:
  int number_;
};

constexpr std::string_view kTemporarySuffix = ".tmp";
constexpr std::size_t kBufferBytes = 1 << 18;

// A temporary file is called .<name of the file>.<process>.<number>.tmp.
std::string temporary_prefix(const std::filesystem::path& file) {
  return fmt::format(".{}.", file.filename().string());
}

bool is_temporary(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix) || !name.ends_with(kTemporarySuffix)) return false;
  if (name.size() < prefix.size() + kTemporarySuffix.size()) return false;
  name.remove_prefix(prefix.size());
  name.remove_suffix(kTemporarySuffix.size());
  const std::size_t dot = name.find('.');
  const auto number = [](std::string_view text) {
    return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
  };
  return dot != std::string_view::npos && number(name.substr(0, dot)) &&
         number(name.substr(dot + 1));
}

// Whether the path still names the file that the descriptor is open on.
bool is_at(const std::filesystem::path& path, int descriptor) {
  struct stat own;
  struct stat named;
  return ::fstat(descriptor, &own) == 0 && ::lstat(path.c_str(), &named) == 0 &&
         own.st_dev == named.st_dev && own.st_ino == named.st_ino;
}

bool write_all(int descriptor, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return true;
}

// Makes a rename survive a power failure. Some file systems cannot sync folders and return EINVAL,
// which is ignored.
void sync_folder(const std::filesystem::path& file) {
  const std::filesystem::path folder = file.has_parent_path() ? file.parent_path() : ".";
  Descriptor descriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (descriptor.number() < 0) fail_with_cause(file, "its folder cannot be synced", errno);
  if (::fsync(descriptor.number()) != 0 && errno != EINVAL) {
    fail_with_cause(file, "its folder cannot be synced", errno);
  }
}

}  // namespace

// A new, locked file with a unique name in the same folder as another; deleted unless it is kept.
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
      path.replace_filename(fmt::format("{}{}.{}{}", temporary_prefix(beside), ::getpid(), attempt,
                                        kTemporarySuffix));
      const int number = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
      if (number < 0 && errno == EEXIST) continue;
      if (number < 0) fail_with_cause(beside, "cannot be written", errno);
      // Another writer may be removing stale files just now: it holds the lock and is about to
      // delete this file, or has deleted it, and a third may already have created one of the same
      // name. Where locks are not supported, nobody else can lock the file either, so it never
      // counts as stale.
      const bool taken = ::flock(number, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
      if (!taken && is_at(path, number)) return number;
      ::close(number);
    }
  }

  std::filesystem::path path_;
  Descriptor descriptor_;
  bool kept_ = false;
};

void remove_stale_temporaries(const std::filesystem::path& file) {
  const std::filesystem::path folder = file.has_parent_path() ? file.parent_path() : ".";
  const std::string prefix = temporary_prefix(file);
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (!is_temporary(name, prefix)) continue;
    const Descriptor descriptor(::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (descriptor.number() < 0) continue;
    if (::flock(descriptor.number(), LOCK_EX | LOCK_NB) != 0) continue;
    // Its writer may have deleted it meanwhile and created another of the same name.
    if (is_at(entry.path(), descriptor.number())) ::unlink(entry.path().c_str());
  }
}

std::shared_ptr<Buffer> read_file(const std::filesystem::path& file) {
  const FileReader reader(file);
  std::shared_ptr<Buffer> buffer = host().allocate(static_cast<std::size_t>(reader.size()));
  reader.read(0, {buffer->data(), buffer->bytes()});
  return buffer;
}

// O_NONBLOCK: opening a pipe that nobody writes to must not block.
FileReader::FileReader(const std::filesystem::path& file)
    : file_(file), descriptor_(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  if (descriptor_ < 0) fail_with_cause(file, "cannot be opened", errno);
  Descriptor guard(descriptor_);
  struct stat status;
  if (::fstat(descriptor_, &status) != 0) fail_with_cause(file, "cannot be read", errno);
  if (!S_ISREG(status.st_mode)) fail<DataError>("{}: is not a regular file", file.string());
  size_ = static_cast<std::uint64_t>(status.st_size);
  guard.release();
}

FileReader::~FileReader() {
  ::close(descriptor_);
}

void FileReader::read(std::uint64_t offset, std::span<std::byte> bytes) const {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = ::pread(descriptor_, bytes.data() + done, bytes.size() - done,
                                static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_with_cause(file_, "cannot be read", errno);
    if (got == 0) {
      fail<DataError>("{}: ended after {} of {} bytes while it was read", file_.string(),
                      offset + done, size_);
    }
    done += static_cast<std::size_t>(got);
  }
}

void write_file(const std::filesystem::path& file,
                std::span<const std::span<const std::byte>> pieces) {
  FileWriter writer(file);
  for (std::span<const std::byte> piece : pieces) writer.append(piece);
  writer.commit();
}

void rename_file(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) fail_with_cause(to, "cannot be replaced", errno);
  sync_folder(to);
}

void link_file(const std::filesystem::path& file, const std::filesystem::path& name) {
  remove_stale_temporaries(name);
  std::filesystem::path link = name;
  link.replace_filename(
      fmt::format("{}{}.0{}", temporary_prefix(name), ::getpid(), kTemporarySuffix));
  if (::link(file.c_str(), link.c_str()) == 0) {
    const int failed = ::rename(link.c_str(), name.c_str()) == 0 ? 0 : errno;
    ::unlink(link.c_str());  // still there if both names were the same file's
    if (failed != 0) fail_with_cause(name, "cannot be replaced", failed);
    sync_folder(name);
    return;
  }
  if (errno == ENOENT) fail_with_cause(file, "cannot be linked", errno);
  const std::shared_ptr<Buffer> bytes = read_file(file);
  const std::span<const std::byte> whole(bytes->data(), bytes->bytes());
  write_file(name, {&whole, 1});
}

FileWriter::FileWriter(const std::filesystem::path& file) : file_(file) {
  remove_stale_temporaries(file);
  temporary_ = std::make_unique<TemporaryFile>(file);
}

FileWriter::~FileWriter() = default;
FileWriter::FileWriter(FileWriter&&) noexcept = default;
FileWriter& FileWriter::operator=(FileWriter&&) noexcept = default;

void FileWriter::append(std::span<const std::byte> bytes) {
  // Small pieces are collected: a shuffle buffer may have millions of them.
  if (buffered_.size() + bytes.size() > kBufferBytes) flush();
  if (bytes.size() < kBufferBytes) {
    buffered_.insert(buffered_.end(), bytes.begin(), bytes.end());
  } else if (!write_all(temporary_->descriptor().number(), bytes)) {
    fail_with_cause(file_, "cannot be written", errno);
  }
}

void FileWriter::flush() {
  if (!write_all(temporary_->descriptor().number(), buffered_)) {
    fail_with_cause(file_, "cannot be written", errno);
  }
  buffered_.clear();
}

void FileWriter::commit() {
  flush();
  if (::fsync(temporary_->descriptor().number()) != 0) {
    fail_with_cause(file_, "cannot be written", errno);
  }
  if (::rename(temporary_->path().c_str(), file_.c_str()) != 0) {
    fail_with_cause(file_, "cannot be replaced", errno);
  }
  temporary_->keep();
  // Closed only now: until the file has its final name, the lock keeps others from removing it as
  // stale.
  if (!temporary_->descriptor().close()) fail_with_cause(file_, "cannot be written", errno);
  sync_folder(file_);
}

}  // namespace lockstep
