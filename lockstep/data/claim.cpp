#include "lockstep/data/claim.h"

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

fs::path beside(const fs::path& path) {
  // A folder may be given with a slash behind it.
  const fs::path plain = path.has_filename() ? path : path.parent_path();
  return plain.string() + ".writing";
}

int open_for_writing(const fs::path& path, const fs::path& temporary, Claim::Kind kind) {
  std::error_code ignored;
  if (path.has_parent_path()) fs::create_directories(temporary.parent_path(), ignored);
  int descriptor = -1;
  if (kind == Claim::Kind::File) {
    descriptor = ::open(temporary.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  } else {
    if (::mkdir(temporary.c_str(), 0777) != 0 && errno != EEXIST) {
      fail_with_cause(path, "cannot be written", errno);
    }
    descriptor = ::open(temporary.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  }
  const bool renamed = kind == Claim::Kind::Folder && errno == ENOENT;
  if (descriptor < 0 && !renamed) fail_with_cause(path, "cannot be written", errno);
  return descriptor;
}

// Whether the open file is still the one of that name: it may have been renamed or deleted between
// the opening and the locking.
bool is_named(int descriptor, const fs::path& path) {
  struct stat open, named;
  return ::fstat(descriptor, &open) == 0 && ::stat(path.c_str(), &named) == 0 &&
         open.st_dev == named.st_dev && open.st_ino == named.st_ino;
}

void sync_folder_of(const fs::path& path) {
  const fs::path folder = path.has_parent_path() ? path.parent_path() : ".";
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;
  ::fsync(descriptor);  // some file systems cannot: there is nothing to do about it then
  ::close(descriptor);
}

}  // namespace

std::unique_ptr<Claim> Claim::make(const fs::path& path, Kind kind) {
  const fs::path temporary = beside(path);
  for (;;) {
    const int descriptor = open_for_writing(path, temporary, kind);
    if (descriptor < 0) continue;  // a folder that was renamed under our hands
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
    std::unique_ptr<Claim> claim(new Claim(path, temporary, kind, descriptor));
    std::error_code error;
    if (fs::exists(path, error)) return nullptr;  // it appeared meanwhile; what we made goes again
    if (kind == Kind::File) {
      if (::ftruncate(descriptor, 0) != 0) fail_with_cause(path, "cannot be written", errno);
    } else {
      for (const fs::directory_entry& entry : fs::directory_iterator(temporary)) {
        fs::remove_all(entry.path());
      }
    }
    return claim;
  }
}

Claim::~Claim() {
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

void Claim::publish() {
  if (::fsync(descriptor_) != 0 && errno != EINVAL) {
    fail_with_cause(path_, "cannot be written", errno);
  }
  const fs::path target = path_.has_filename() ? path_ : path_.parent_path();
  if (::rename(temporary_.c_str(), target.c_str()) != 0) {
    fail_with_cause(path_, "cannot be put in its place", errno);
  }
  published_ = true;
  sync_folder_of(target);
}

}  // namespace lockstep
