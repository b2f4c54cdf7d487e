// The node of a list of files that are read record by record, for any format. A Reader reads one
// file: it has next(), skip(count), record() (the number of the next record), save() and restore().
#pragma once

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/data/transformations.h"

namespace lockstep {

// Sample numbers reserved for each file.
inline constexpr std::uint64_t kRecordsOfAFile = std::uint64_t{1} << 40;

template <class Reader>
struct RecordFormat {
  std::string name;  // "tfrecord"
  std::vector<ElementSpec> spec;
  OnError on_error = OnError::Raise;
  std::function<std::unique_ptr<Reader>(const std::filesystem::path&)> open;
  // The next record as an element; nullopt at the end.
  std::function<std::optional<Element>(Reader&)> next;
};

template <class Reader>
class RecordFilesCursor final : public Cursor {
 public:
  RecordFilesCursor(std::shared_ptr<const std::vector<std::filesystem::path>> files,
                    const RecordFormat<Reader>& format, const Context& context, Stage& stage)
      : files_(std::move(files)),
        format_(format),
        context_(context),
        stage_(stage),
        file_(std::min(static_cast<std::size_t>(context.files.index), files_->size())) {}

  std::optional<Element> next() override {
    while (file_ < files_->size()) {
      try {
        if (reader_ == nullptr) open();
        const auto record = static_cast<std::uint64_t>(reader_->record());
        if (std::optional<Element> element = format_.next(*reader_)) {
          element->sample = {.epoch = context_.epoch,
                             .number = file_ * kRecordsOfAFile + record,
                             .file = name_,
                             .record = static_cast<std::int64_t>(record)};
          return element;
        }
        next_file();
      } catch (const DataError& error) {
        pass(error);
      }
    }
    return std::nullopt;
  }

  // With OnError::Skip, damaged records do not count, so records have to be read to find them.
  std::int64_t skip(std::int64_t count) override {
    if (format_.on_error == OnError::Skip) return Cursor::skip(count);
    std::int64_t passed = 0;
    while (passed < count && file_ < files_->size()) {
      try {
        if (reader_ == nullptr) open();
        passed += reader_->skip(count - passed);
      } catch (const DataError& error) {
        pass(error);
      }
      if (passed < count) next_file();
    }
    return passed;
  }

  void save(PositionWriter& state) const override {
    state.word(file_);
    state.word(reader_ != nullptr ? 1 : 0);
    if (reader_ != nullptr) state.text(reader_->save());
  }
  void restore(PositionReader& state) override {
    file_ = static_cast<std::size_t>(state.count(std::ssize(*files_)));
    if (state.count(1) == 0) return;
    require(file_ < files_->size(), "[{}] the saved position is beyond the last file",
            format_.name);
    open();
    reader_->restore(state.text());
  }

 private:
  void open() {
    reader_ = format_.open((*files_)[file_]);
    name_ = std::make_shared<std::string>((*files_)[file_].string());
  }
  // Goes to the next file of this worker.
  void next_file() {
    reader_ = nullptr;
    file_ = std::min(file_ + static_cast<std::size_t>(context_.files.count), files_->size());
  }
  // The reader is after the damaged record, or at its end.
  void pass(const DataError& error) {
    if (format_.on_error == OnError::Raise) {
      throw DataError("[" + format_.name + "] " + error.what());
    }
    context_.runtime->skipped(stage_, error.what());
    if (reader_ == nullptr) next_file();  // it could not even be opened
  }

  std::shared_ptr<const std::vector<std::filesystem::path>> files_;
  RecordFormat<Reader> format_;
  Context context_;
  Stage& stage_;
  std::size_t file_;                         // among all files, not only those of this worker
  std::unique_ptr<Reader> reader_;           // of that file; null until it is opened
  std::shared_ptr<const std::string> name_;  // of that file
};

template <class Reader>
class RecordFilesNode final : public DatasetNode {
 public:
  RecordFilesNode(std::vector<std::filesystem::path> files, RecordFormat<Reader> format)
      : files_(std::make_shared<const std::vector<std::filesystem::path>>(std::move(files))),
        format_(std::move(format)) {}

  std::string name() const override { return format_.name; }
  std::vector<NodePtr> inputs() const override { return {}; }
  std::vector<ElementSpec> element_spec() const override { return format_.spec; }
  std::int64_t cardinality() const override { return kUnknown; }
  std::string signature() const override {
    std::uint64_t identity = 0;
    for (const std::filesystem::path& file : *files_) {
      identity = combine(identity, hash_name(file.filename().string()));
    }
    return fmt::format("{}({} files {:016x})", format_.name, files_->size(), identity);
  }
  ShareRules share_rules() const override { return {.files = std::ssize(*files_)}; }
  std::unique_ptr<Cursor> cursor(const Context& context) const override {
    return std::make_unique<RecordFilesCursor<Reader>>(files_, format_, context,
                                                       context.runtime->stage(*this));
  }

 private:
  std::shared_ptr<const std::vector<std::filesystem::path>> files_;
  RecordFormat<Reader> format_;
};

}  // namespace lockstep
