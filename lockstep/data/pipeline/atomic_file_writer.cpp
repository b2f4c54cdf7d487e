#include "lockstep/data/pipeline/atomic_file_writer.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail_with_cause(const fs::path& path, const char* what, int cause) {
  fail<DataError>("{}: {}: {}", path.string(), what, std::generic_category().message(cause));
}

fs::path temporary_path(const fs::path& path) {
  // The path of a folder may end in a slash.
  const fs::path plain = path.has_filename() ? path : path.parent_path();
  return plain.string() + ".writing";
}

int open_for_writing(const fs::path& path, const fs::path& temporary, AtomicFileWriter::Kind kind) {
  std::error_code ignored;
  if (path.has_parent_path()) fs::create_directories(temporary.parent_path(), ignored);
  int descriptor = -1;
  if (kind == AtomicFileWriter::Kind::File) {
    descriptor = ::open(temporary.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  } else {
    if (::mkdir(temporary.c_str(), 0777) != 0 && errno != EEXIST) {
      fail_with_cause(path, "cannot be written", errno);
    }
    descriptor = ::open(temporary.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  }
  const bool renamed = kind == AtomicFileWriter::Kind::Folder && errno == ENOENT;
  if (descriptor < 0 && !renamed) fail_with_cause(path, "cannot be written", errno);
  return descriptor;
}

// Whether the open file still has that name: it may have been renamed or deleted between opening
// and locking.
bool is_named(int descriptor, const fs::path& path) {
  struct stat open, named;
  return ::fstat(descriptor, &open) == 0 && ::stat(path.c_str(), &named) == 0 &&
         open.st_dev == named.st_dev && open.st_ino == named.st_ino;
}

void sync_folder_of(const fs::path& path) {
  const fs::path folder = path.has_parent_path() ? path.parent_path() : ".";
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;
  ::fsync(descriptor);  // fails on some file systems; nothing can be done about it
  ::close(descriptor);
}

}  // namespace

std::unique_ptr<AtomicFileWriter> AtomicFileWriter::make(const fs::path& path, Kind kind) {
  const fs::path temporary = temporary_path(path);
  for (;;) {
    const int descriptor = open_for_writing(path, temporary, kind);
    if (descriptor < 0) continue;  // the folder was renamed before it could be opened
    if (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
      const int cause = errno;
      ::close(descriptor);
      if (cause == EINTR) continue;
      if (cause == EWOULDBLOCK) return nullptr;
      fail_with_cause(path, "cannot be locked", cause);
    }
    if (!is_named(descriptor, temporary)) {
      ::close(descriptor);
      continue;
    }
    std::unique_ptr<AtomicFileWriter> writer(
        new AtomicFileWriter(path, temporary, kind, descriptor));
    std::error_code error;
    if (fs::exists(path, error)) return nullptr;  // published meanwhile: discard ours
    if (kind == Kind::File) {
      if (::ftruncate(descriptor, 0) != 0) fail_with_cause(path, "cannot be written", errno);
    } else {
      for (const fs::directory_entry& entry : fs::directory_iterator(temporary)) {
        fs::remove_all(entry.path());
      }
    }
    return writer;
  }
}

AtomicFileWriter::~AtomicFileWriter() {
  if (!published_) {
    std::error_code ignored;
    if (kind_ == Kind::File) {
      fs::remove(temporary_, ignored);
    } else {
      fs::remove_all(temporary_, ignored);
    }
  }
  ::close(descriptor_);
}

void AtomicFileWriter::publish() {
  if (::fsync(descriptor_) != 0 && errno != EINVAL) {
    fail_with_cause(path_, "cannot be written", errno);
  }
  const fs::path target = path_.has_filename() ? path_ : path_.parent_path();
  if (::rename(temporary_.c_str(), target.c_str()) != 0) {
    fail_with_cause(path_, "cannot be renamed into place", errno);
  }
  published_ = true;
  sync_folder_of(target);
}

}  // namespace lockstep
