// Keeps the elements of the first pass in a file (element_file.h), which appears when the pass ends
// and is used by later passes and later runs. If shard() or workers divide the elements, each part
// has its own file.
#include "lockstep/data/pipeline/atomic_file_writer.h"
#include "lockstep/data/pipeline/element_file.h"
#include "lockstep/data/transformations.h"
#include "lockstep/data/transformations/cache_cursor.h"
#include "lockstep/data/transformations/shard.h"

namespace lockstep {
namespace {

class FileStore final : public CacheStore {
 public:
  // `head` describes what the file holds.
  FileStore(std::filesystem::path path, std::string head)
      : path_(std::move(path)), head_(std::move(head)) {}

  bool open() override {
    std::error_code ignored;
    if (!std::filesystem::exists(path_, ignored)) return false;
    file_ = std::make_shared<const ElementFile>(path_);
    require(file_->head() == head_,
            "[cache] {} holds the elements of the data set {}, not of {}: use another file, or "
            "delete this one",
            path_.string(), file_->head(), head_);
    reader_.emplace(file_);
    return true;
  }
  std::int64_t count() const override { return file_->count(); }
  Element read(std::int64_t number) override { return reader_->read(number); }

  bool begin() override {
    output_ = AtomicFileWriter::make(path_, AtomicFileWriter::Kind::File);
    if (output_ != nullptr) writer_.emplace(output_->descriptor(), path_, head_);
    return output_ != nullptr;
  }
  void keep(const Element& element) override {
    or_give_up([&] { writer_->append(element); });
  }
  void finish() override {
    or_give_up([&] {
      writer_->finish();
      output_->publish();
    });
    output_ = nullptr;
  }

 private:
  // If the file cannot be completed, nothing of it is left.
  template <class Write>
  void or_give_up(Write write) {
    try {
      write();
    } catch (...) {
      output_ = nullptr;
      throw;
    }
  }

  std::filesystem::path path_;
  std::string head_;
  std::shared_ptr<const ElementFile> file_;
  std::optional<ElementFile::Reader> reader_;
  std::unique_ptr<AtomicFileWriter> output_;
  std::optional<ElementFileWriter> writer_;
};

class FileCacheNode final : public DatasetNode {
 public:
  FileCacheNode(NodePtr input, std::filesystem::path file)
      : input_(std::move(input)), file_(std::move(file)), per_shard_(depends_on_shard(*input_)) {}

  std::string name() const override { return "file cache"; }
  std::vector<NodePtr> inputs() const override { return {input_}; }
  std::vector<ElementSpec> element_spec() const override { return input_->element_spec(); }
  std::int64_t cardinality() const override { return input_->cardinality(); }
  std::string signature() const override { return input_->signature() + ".cache(file)"; }
  std::unique_ptr<Cursor> cursor(const Context& context) const override {
    std::filesystem::path file = file_;
    std::string head =
        fmt::format("{} giving {}", input_->signature(), describe(input_->element_spec()));
    const std::string part = cached_part(context, per_shard_);
    file += part;
    if (per_shard_ && context.shards > 1) {
      head += fmt::format(", shard {} of {}", context.shard, context.shards);
    }
    if (context.files.count > 1 || context.share) head += ", part " + part.substr(1);
    return std::make_unique<CacheCursor>(
        Input(input_, context.in_epoch(0)), context.epoch,
        std::make_unique<FileStore>(std::move(file), std::move(head)));
  }

 private:
  NodePtr input_;
  std::filesystem::path file_;
  bool per_shard_;
};

}  // namespace

NodePtr make_file_cache(NodePtr input, std::filesystem::path file) {
  require(!file.empty() && file.has_filename(), "[cache] \"{}\" is not the name of a file",
          file.string());
  require(input->cardinality() != kInfinite,
          "[cache] an infinite data set cannot be cached; call cache() before repeat()");
  return std::make_shared<FileCacheNode>(std::move(input), std::move(file));
}

}  // namespace lockstep
