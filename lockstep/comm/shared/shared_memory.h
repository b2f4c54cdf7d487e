// Memory files that processes share, and mappings of parts of them.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

namespace lockstep {

// Owns a descriptor.
class SharedFile {
 public:
  explicit SharedFile(int fd) : fd_(fd) {}
  ~SharedFile();
  SharedFile(const SharedFile&) = delete;
  SharedFile& operator=(const SharedFile&) = delete;

  // Makes these bytes part of the file and allocates memory for all of them, so that using them
  // later cannot fail; returns errno, or 0. Never makes the file shorter.
  int reserve(std::size_t offset, std::size_t bytes) const;
  // Frees the memory of these bytes.
  void release(std::size_t offset, std::size_t bytes) const;
  std::size_t bytes() const;
  int fd() const { return fd_; }
  // Hands the descriptor to the caller.
  int give_up() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

// Some bytes of a file, mapped into this process.
class Mapping {
 public:
  // UsageError if there is no room for it.
  Mapping(const SharedFile& file, std::size_t offset, std::size_t bytes);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::byte* data() const { return memory_.data(); }

 private:
  std::span<std::byte> memory_;
};

// Rounded up to whole pages.
std::size_t whole_pages(std::size_t bytes);

}  // namespace lockstep
