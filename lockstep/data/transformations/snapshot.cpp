#include "lockstep/data/transformations/snapshot.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <system_error>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/base/json_depth.h"
#include "lockstep/data/pipeline/atomic_file_writer.h"
#include "lockstep/data/pipeline/element_file.h"
#include "lockstep/data/transformations.h"
#include "lockstep/data/transformations/cache_cursor.h"
#include "lockstep/data/transformations/shard.h"
#include "lockstep/tensor/host_file.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::string_view kFormat = "lockstep snapshot 1";
constexpr const char* kDescription = "snapshot.json";
constexpr std::uint64_t kFileBytes = std::uint64_t{256} << 20;
constexpr std::chrono::milliseconds kLookAgain{20};
// How long another process may write a snapshot without progress.
constexpr std::chrono::minutes kTimeout{10};

std::uintmax_t bytes_in(const fs::path& folder) {
  std::uintmax_t bytes = 0;
  std::error_code error;
  for (fs::directory_iterator file(folder, error), end; !error && file != end;
       file.increment(error)) {
    std::error_code unreadable;
    const std::uintmax_t size = file->file_size(unreadable);
    if (!unreadable) bytes += size;
  }
  return bytes;
}

// Watches another process write; DataError, naming the folder, if it makes no progress for too
// long.
class OtherWriter {
 public:
  explicit OtherWriter(fs::path folder) : folder_(std::move(folder)) {}

  void look() {
    const auto now = std::chrono::steady_clock::now();
    const std::uintmax_t bytes = bytes_in(folder_.string() + ".writing");
    if (bytes != seen_) {
      seen_ = bytes;
      since_ = now;
    }
    if (now - since_ > kTimeout) {
      fail<DataError>(
          "[snapshot] {}: another process is writing it but has made no progress for {} minutes; "
          "stop that process, or use another folder",
          folder_.string(), kTimeout.count());
    }
  }

 private:
  fs::path folder_;
  std::uintmax_t seen_ = 0;
  std::chrono::steady_clock::time_point since_ = std::chrono::steady_clock::now();
};

json described(const SnapshotDescription& snapshot) {
  json spec = json::array();
  for (const ElementSpec& component : snapshot.spec) {
    spec.push_back({{"dtype", name_of(component.dtype)},
                    {"shape", component.shape.dims()},
                    {"varies", component.varies}});
  }
  json files = json::array();
  for (const SnapshotDescription::File& file : snapshot.files) {
    files.push_back({{"name", file.name}, {"count", file.count}});
  }
  return {{"format", kFormat},
          {"signature", snapshot.signature},
          {"count", snapshot.count()},
          {"spec", spec},
          {"files", files}};
}

SnapshotDescription parsed(const json& document) {
  if (document.at("format").get<std::string>() != kFormat) {
    fail<DataError>("the format is {}, not {}", document.at("format").dump(), kFormat);
  }
  SnapshotDescription snapshot;
  snapshot.signature = document.at("signature").get<std::string>();
  for (const json& component : document.at("spec")) {
    snapshot.spec.push_back({.dtype = dtype_named(component.at("dtype").get<std::string>()),
                             .shape = Shape(component.at("shape").get<std::vector<std::int64_t>>()),
                             .varies = component.at("varies").get<bool>()});
  }
  for (const json& file : document.at("files")) {
    snapshot.files.push_back({.name = file.at("name").get<std::string>(),
                              .count = file.at("count").get<std::int64_t>()});
    const std::string& name = snapshot.files.back().name;
    if (fs::path(name).filename() != name || snapshot.files.back().count < 0) {
      fail<DataError>("it lists {} elements in the file \"{}\"", snapshot.files.back().count, name);
    }
  }
  if (document.at("count").get<std::int64_t>() != snapshot.count()) {
    fail<DataError>("the files hold {} elements in total, not {}", snapshot.count(),
                    document.at("count").dump());
  }
  return snapshot;
}

// The head of an element file, so that files of different snapshots cannot be mixed up.
std::string head_of(const std::string& signature, std::size_t number) {
  return fmt::format("file {} of a snapshot of {}", number, signature);
}

// The element files of a snapshot that is being written, one after the other.
class Files {
 public:
  Files(fs::path folder, fs::path final_folder, std::uint64_t bytes, std::string signature)
      : folder_(std::move(folder)),
        final_folder_(std::move(final_folder)),
        bytes_(bytes),
        signature_(std::move(signature)) {}
  ~Files() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  Files(const Files&) = delete;
  Files& operator=(const Files&) = delete;

  void append(const Element& element) {
    if (writer_ && writer_->bytes() >= bytes_) close();
    if (!writer_) open();
    writer_->append(element);
  }
  std::vector<SnapshotDescription::File> finish() {
    if (writer_) close();
    return std::move(files_);
  }

 private:
  void open() {
    const std::string name = fmt::format("elements-{:05}", files_.size());
    descriptor_ = ::open((folder_ / name).c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (descriptor_ < 0) fail_with_cause(name, errno);
    writer_.emplace(descriptor_, final_folder_ / name, head_of(signature_, files_.size()));
    files_.push_back({.name = name, .count = 0});
  }
  void close() {
    writer_->finish();
    files_.back().count = writer_->count();
    writer_.reset();
    const bool synced = ::fsync(descriptor_) == 0;
    const int cause = errno;
    const bool closed = ::close(std::exchange(descriptor_, -1)) == 0;
    if (!synced || !closed) fail_with_cause(files_.back().name, synced ? errno : cause);
  }
  [[noreturn]] void fail_with_cause(const std::string& name, int cause) const {
    fail<DataError>("{}: cannot be written: {}", (final_folder_ / name).string(),
                    std::generic_category().message(cause));
  }

  fs::path folder_;        // where they are written
  fs::path final_folder_;  // where they will be published, for messages
  std::uint64_t bytes_;
  std::string signature_;
  int descriptor_ = -1;
  std::optional<ElementFileWriter> writer_;
  std::vector<SnapshotDescription::File> files_;
};

// Reads a snapshot; with an input, writes it first if it does not exist.
class SnapshotCursor final : public Cursor {
 public:
  SnapshotCursor(fs::path folder, std::uint64_t epoch, std::optional<Input> input)
      : folder_(std::move(folder)), epoch_(epoch), input_(std::move(input)) {}

  std::optional<Element> next() override {
    if (error_) std::rethrow_exception(error_);
    try {
      open();
      if (given_ == count_) return std::nullopt;
      Element element = read(given_);
      element.sample.epoch = epoch_in_pass(epoch_, element.sample.epoch);
      ++given_;
      return element;
    } catch (...) {
      error_ = std::current_exception();
      throw;
    }
  }
  std::int64_t skip(std::int64_t count) override {
    if (error_) std::rethrow_exception(error_);
    open();
    const std::int64_t passed = std::min(count, count_ - given_);
    given_ += passed;
    return passed;
  }
  void save(PositionWriter& state) const override {
    state.word(static_cast<std::uint64_t>(given_));
  }
  void restore(PositionReader& state) override {
    given_ = state.count(std::numeric_limits<std::int64_t>::max());
  }

 private:
  void open() {
    if (opened_) return;
    if (input_ && !is_snapshot(folder_) && !write_snapshot(folder_, *input_, kFileBytes)) {
      fail<UsageError>("[snapshot] {}: the iterator was destroyed while it was written",
                       folder_.string());
    }
    snapshot_ = read_snapshot(folder_);
    if (input_) {
      const std::string signature = input_->node()->signature();
      require(snapshot_.signature == signature,
              "[snapshot] {} is a snapshot of the data set {}, not of {}: use another folder, or "
              "delete this one",
              folder_.string(), snapshot_.signature, signature);
      input_.reset();
    }
    count_ = snapshot_.count();
    require(given_ <= count_,
            "[snapshot] the position is after {} elements, but {} has {}: it has changed since",
            given_, folder_.string(), count_);
    opened_ = true;
  }

  Element read(std::int64_t number) {
    while (!reader_ || number < first_ || number >= first_ + snapshot_.files[file_].count) {
      find_file(number);
    }
    return reader_->read(number - first_);
  }

  void find_file(std::int64_t number) {
    first_ = 0;
    file_ = 0;
    while (number >= first_ + snapshot_.files[file_].count)
      first_ += snapshot_.files[file_++].count;
    const SnapshotDescription::File& entry = snapshot_.files[file_];
    const auto file = std::make_shared<const ElementFile>(folder_ / entry.name);
    if (file->head() != head_of(snapshot_.signature, file_) || file->count() != entry.count) {
      fail<DataError>("{}: is not the file that {} lists: {} elements, {}", file->name(),
                      (folder_ / kDescription).string(), file->count(), file->head());
    }
    reader_.emplace(file);
  }

  fs::path folder_;
  std::uint64_t epoch_;
  std::optional<Input> input_;
  bool opened_ = false;
  SnapshotDescription snapshot_;
  std::int64_t count_ = 0;
  std::int64_t given_ = 0;
  std::size_t file_ = 0;
  std::int64_t first_ = 0;  // the number of the file's first element
  std::optional<ElementFile::Reader> reader_;
  std::exception_ptr error_;
};

class SnapshotNode final : public DatasetNode {
 public:
  SnapshotNode(NodePtr input, fs::path folder)
      : input_(std::move(input)), folder_(std::move(folder)) {}

  std::string name() const override { return "snapshot"; }
  std::vector<NodePtr> inputs() const override { return {input_}; }
  std::vector<ElementSpec> element_spec() const override { return input_->element_spec(); }
  std::int64_t cardinality() const override { return input_->cardinality(); }
  std::string signature() const override { return input_->signature() + ".snapshot"; }
  ShareRules share_rules() const override {
    return {.any_batch = false, .dealt = ShareRules::Dealt::Wrong};
  }
  std::unique_ptr<Cursor> cursor(const Context& context) const override {
    Context whole = context.without_share().in_epoch(0);
    whole.shard = 0;
    whole.shards = 1;
    return std::make_unique<SnapshotCursor>(folder_, context.epoch, Input(input_, whole));
  }

 private:
  NodePtr input_;
  fs::path folder_;
};

class LoadNode final : public DatasetNode {
 public:
  LoadNode(fs::path folder, SnapshotDescription snapshot)
      : folder_(std::move(folder)), snapshot_(std::move(snapshot)) {}

  std::string name() const override { return "load"; }
  std::vector<NodePtr> inputs() const override { return {}; }
  std::vector<ElementSpec> element_spec() const override { return snapshot_.spec; }
  std::int64_t cardinality() const override { return snapshot_.count(); }
  std::string signature() const override {
    return fmt::format("load({} of {})", snapshot_.count(), snapshot_.signature);
  }
  std::unique_ptr<Cursor> cursor(const Context& context) const override {
    return std::make_unique<SnapshotCursor>(folder_, context.epoch, std::nullopt);
  }

 private:
  fs::path folder_;
  SnapshotDescription snapshot_;
};

}  // namespace

std::int64_t SnapshotDescription::count() const {
  return std::accumulate(files.begin(), files.end(), std::int64_t{0},
                         [](std::int64_t sum, const File& file) { return sum + file.count; });
}

bool is_snapshot(const fs::path& folder) {
  std::error_code ignored;
  return fs::exists(folder / kDescription, ignored);
}

SnapshotDescription read_snapshot(const fs::path& folder) {
  const fs::path file = folder / kDescription;
  const std::shared_ptr<Buffer> bytes = read_file(file);
  const auto* begin = reinterpret_cast<const char*>(bytes->data());
  try {
    require(!nests_too_deep({begin, bytes->bytes()}), "it is nested deeper than {} levels",
            kMaxJsonDepth);
    return parsed(json::parse(begin, begin + bytes->bytes()));
  } catch (const std::exception& error) {
    fail<DataError>("{}: does not describe a snapshot: {}", file.string(), error.what());
  }
}

bool write_snapshot(const fs::path& folder, Input& input, std::uint64_t file_bytes) {
  std::unique_ptr<AtomicFileWriter> output;
  OtherWriter other(folder);
  while (!is_snapshot(folder)) {
    std::error_code ignored;
    if (fs::exists(folder, ignored) && !fs::is_empty(folder, ignored)) {
      fail<UsageError>(
          "[snapshot] {} exists but is not a snapshot: use a folder that is empty or does not "
          "exist",
          folder.string());
    }
    fs::remove(folder, ignored);  // if it is empty
    output = AtomicFileWriter::make(folder, AtomicFileWriter::Kind::Folder);
    if (output != nullptr) break;
    if (input.context().runtime->ending) return false;
    other.look();
    std::this_thread::sleep_for(kLookAgain);
  }
  if (output == nullptr) return true;
  SnapshotDescription snapshot{
      .signature = input.node()->signature(), .spec = input.node()->element_spec(), .files = {}};
  Files files(output->temporary(), folder, file_bytes, snapshot.signature);
  while (const std::optional<Element> element = input.next()) {
    files.append(*element);
    if (input.context().runtime->ending) return false;
  }
  snapshot.files = files.finish();
  const std::string text = described(snapshot).dump(2) + "\n";
  const auto bytes = std::as_bytes(std::span(text));
  write_file(output->temporary() / kDescription, std::span(&bytes, 1));
  output->publish();
  return true;
}

NodePtr make_snapshot(NodePtr input, fs::path folder) {
  require(!folder.empty(), "[snapshot] the folder is empty");
  require(input->cardinality() != kInfinite,
          "[snapshot] an infinite data set cannot be saved; call repeat() after snapshot()");
  require(!depends_on_shard(*input),
          "[snapshot] shard() divides the elements, so the snapshot would not hold all of them: "
          "call shard() after snapshot()");
  return std::make_shared<SnapshotNode>(std::move(input), std::move(folder));
}

NodePtr make_snapshot_reader(const fs::path& folder) {
  return std::make_shared<LoadNode>(folder, read_snapshot(folder));
}

}  // namespace lockstep
