#include "lockstep/data/image/map_images.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// A reusable buffer for files. It is page-aligned: at the address of a large malloc, 16 bytes into
// a page, copying from the page cache is six times slower on AMD processors.
class FileMemory {
 public:
  // A buffer of this many bytes; its earlier contents are lost.
  std::span<std::byte> of(std::size_t bytes) {
    if (bytes > size_) {
      const std::size_t size = (bytes + kPage - 1) / kPage * kPage;
      memory_.reset();
      size_ = 0;
      memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kPage, size)));
      if (memory_ == nullptr) throw std::bad_alloc();
      size_ = size;
    }
    return {memory_.get(), bytes};
  }

 private:
  static constexpr std::size_t kPage = 4096;
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };

  std::unique_ptr<std::byte, Free> memory_;
  std::size_t size_ = 0;
};

// A reader and the buffer for the bytes of a file.
struct Workspace {
  explicit Workspace(const ImageReaderOptions& options) : reader(options) {}
  ImageReader reader;
  FileMemory file;
};

// As many workspaces as threads ever ran at once.
class WorkspacePool {
 public:
  explicit WorkspacePool(const ImageReaderOptions& options) : options_(options) { put(take()); }

  std::unique_ptr<Workspace> take() {
    {
      std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        std::unique_ptr<Workspace> workspace = std::move(free_.back());
        free_.pop_back();
        return workspace;
      }
    }
    return std::make_unique<Workspace>(options_);
  }
  void put(std::unique_ptr<Workspace> workspace) {
    std::lock_guard lock(mutex_);
    free_.push_back(std::move(workspace));
  }

 private:
  ImageReaderOptions options_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Workspace>> free_;
};

// Takes a workspace from the pool and puts it back on destruction.
class PooledWorkspace {
 public:
  explicit PooledWorkspace(WorkspacePool& pool) : pool_(pool), workspace_(pool.take()) {}
  ~PooledWorkspace() { pool_.put(std::move(workspace_)); }
  PooledWorkspace(const PooledWorkspace&) = delete;
  PooledWorkspace& operator=(const PooledWorkspace&) = delete;
  Workspace& operator*() const { return *workspace_; }

 private:
  WorkspacePool& pool_;
  std::unique_ptr<Workspace> workspace_;
};

class Descriptor {
 public:
  explicit Descriptor(const std::filesystem::path& path)
      : number_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int number() const { return number_; }

 private:
  int number_;
};

std::span<const std::byte> read_file(const std::filesystem::path& path, FileMemory& memory) {
  const Descriptor file(path);
  struct stat status {};
  if (file.number() < 0 || ::fstat(file.number(), &status) != 0) {
    fail<DataError>("{}: cannot be read: {}", path.string(), std::strerror(errno));
  }
  if (!S_ISREG(status.st_mode)) fail<DataError>("{}: is not a regular file", path.string());
  const std::span<std::byte> bytes = memory.of(static_cast<std::size_t>(status.st_size));
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = ::read(file.number(), bytes.data() + done, bytes.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      fail<DataError>("{}: cannot be read: {}", path.string(), std::strerror(errno));
    }
    if (got == 0) break;  // the file became shorter; the decoder will report that
    done += static_cast<std::size_t>(got);
  }
  return bytes.first(done);
}

void copy_rest(const Element& element, std::span<Tensor> destination) {
  require(element.size() == destination.size(), "the element has {} components, but .spec has {}",
          element.size(), destination.size());
  for (std::size_t i = 1; i < element.size(); ++i) destination[i].copy_from(element[i]);
}

std::span<std::byte> bytes_of(Tensor& tensor) {
  return {tensor.raw(), tensor.bytes()};
}

}  // namespace

std::vector<ElementSpec> decoded_spec(const ImageReaderOptions& options,
                                      std::vector<ElementSpec> rest) {
  rest.insert(rest.begin(), {options.dtype, ImageReader(options).shape()});
  return rest;
}

WriteFunction decode_images(const ImageReaderOptions& options) {
  auto pool = std::make_shared<WorkspacePool>(options);
  return [pool](const Element& element, RandomSequence& random, std::span<Tensor> destination) {
    const PooledWorkspace workspace(*pool);
    const Tensor& file = element.front();
    require(file.dtype() == DType::U8, "the bytes of an image file must be u8, not {}",
            name_of(file.dtype()));
    (*workspace)
        .reader.read({file.raw(), file.bytes()}, "the image", random, bytes_of(destination[0]));
    copy_rest(element, destination);
  };
}

WriteFunction read_image_files(std::vector<std::filesystem::path> files,
                               const ImageReaderOptions& options) {
  auto pool = std::make_shared<WorkspacePool>(options);
  auto names = std::make_shared<const std::vector<std::filesystem::path>>(std::move(files));
  return
      [pool, names](const Element& element, RandomSequence& random, std::span<Tensor> destination) {
        const PooledWorkspace workspace(*pool);
        const auto number = static_cast<std::size_t>(element.front().values<std::int64_t>()[0]);
        const std::filesystem::path& path = names->at(number);
        const std::span<const std::byte> file = read_file(path, (*workspace).file);
        (*workspace).reader.read(file, path.string(), random, bytes_of(destination[0]));
        copy_rest(element, destination);
      };
}

}  // namespace lockstep
