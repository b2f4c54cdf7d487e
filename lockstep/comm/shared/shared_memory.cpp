#include "lockstep/comm/shared/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "lockstep/base/error.h"
#include "lockstep/device/memory_error.h"

namespace lockstep {

SharedFile::~SharedFile() {
  if (fd_ >= 0) close(fd_);
}

int SharedFile::reserve(std::size_t offset, std::size_t bytes) const {
  for (;;) {
    if (fallocate(fd_, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)) == 0) return 0;
    if (errno != EINTR) return errno;
  }
}

void SharedFile::release(std::size_t offset, std::size_t bytes) const {
  static_cast<void>(fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                              static_cast<off_t>(offset), static_cast<off_t>(bytes)));
}

std::size_t SharedFile::bytes() const {
  struct stat status = {};
  return fstat(fd_, &status) == 0 ? static_cast<std::size_t>(status.st_size) : 0;
}

Mapping::Mapping(const SharedFile& file, std::size_t offset, std::size_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
                            file.fd(), static_cast<off_t>(offset));
  if (memory == MAP_FAILED) {
    fail<MemoryError>("[comm] {} bytes of shared memory cannot be mapped: {}", bytes,
                      std::strerror(errno));
  }
  memory_ = {static_cast<std::byte*>(memory), bytes};
}

Mapping::~Mapping() {
  munmap(memory_.data(), memory_.size());
}

std::size_t whole_pages(std::size_t bytes) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

}  // namespace lockstep
