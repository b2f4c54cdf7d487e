#include "lockstep/data/pipeline/dataset_iterator.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/data/pipeline/explain.h"
#include "lockstep/data/pipeline/named_error.h"
#include "lockstep/data/pipeline/reshard_cursor.h"
#include "lockstep/data/pipeline/share_rules.h"
#include "lockstep/device/cpu/cpu_device.h"

namespace lockstep {
namespace {

constexpr std::string_view kFormat = "lockstep position 2";
// Of a worker that reads a shard of the files, and of reshard(): the format above, preceded by what
// the shard is one of.
constexpr std::string_view kSharedFormat = "lockstep position 3";
constexpr std::int64_t kMostShards = 1 << 20;

// What the shard of a position is one of: shard(), the files of workers, or whatever shards
// continue a position that was resharded.
enum class Division : std::uint64_t { Shards, Files, Any };

Division division_of(const Context& context) {
  return context.files.count > 1 ? Division::Files : Division::Shards;
}

// A saved position, parsed.
struct Saved {
  Division division = Division::Shards;
  std::string_view signature;
  std::int64_t epoch = 0;
  std::int64_t shard = 0;
  std::int64_t shards = 1;
  PositionReader input{""};
  std::string_view input_bytes;

  explicit Saved(std::string_view position, RowReader* rows = nullptr) {
    PositionReader reader(position, rows);
    const std::string_view format = reader.text();
    require(format == kFormat || format == kSharedFormat,
            "[data] these bytes are not the saved position of a data set");
    if (format == kSharedFormat) division = static_cast<Division>(reader.count(2));
    signature = reader.text();
    epoch = reader.count(kMostEpochs);
    shards = reader.count(kMostShards);
    shard = reader.count(shards);
    input_bytes = reader.text();
    input = PositionReader(input_bytes, rows);
    reader.expect_end();
  }
};

PositionWriter written(std::string_view signature, std::uint64_t epoch, ShardIndex shard,
                       Division division, std::shared_ptr<const PositionWriter> input) {
  PositionWriter writer;
  writer.text(division == Division::Shards ? kFormat : kSharedFormat);
  if (division != Division::Shards) writer.word(static_cast<std::uint64_t>(division));
  writer.text(signature);
  writer.word(epoch);
  writer.word(static_cast<std::uint64_t>(shard.count));
  writer.word(static_cast<std::uint64_t>(shard.index));
  writer.nested(std::move(input));
  return writer;
}

// Adds the duration of a call to the time that the consumer waited.
class ConsumerWait {
 public:
  explicit ConsumerWait(Runtime& runtime) : runtime_(runtime) {
    runtime_.consumer_wait.begin(now_ns());
  }
  ~ConsumerWait() { runtime_.consumer_wait.end(now_ns()); }
  ConsumerWait(const ConsumerWait&) = delete;
  ConsumerWait& operator=(const ConsumerWait&) = delete;

 private:
  Runtime& runtime_;
};

// Calls get(). If any thread of the pipeline ran out of memory, throws a UsageError.
template <class Get>
auto with_memory(Get get) {
  try {
    return get();
  } catch (const StageOutOfMemory& error) {
    throw UsageError(error.what());
  } catch (const std::bad_alloc&) {
    throw UsageError(StageOutOfMemory("[data] ").what());
  }
}

}  // namespace

DatasetIterator::DatasetIterator(NodePtr node, Budget budget,
                                 std::shared_ptr<PipelineTuning> tuning,
                                 const IteratorOptions& options)
    : node_(std::move(node)), began_ns_(now_ns()) {
  require(options.epoch <= static_cast<std::uint64_t>(kMostEpochs),
          "[data] epoch {} is more than {}", options.epoch, kMostEpochs);
  require(options.shards > 0 && options.shard >= 0 && options.shard < options.shards,
          "[data] there is no shard {} of {}: shards are numbered from 0", options.shard,
          options.shards);
  context_ = {.epoch = options.epoch,
              .shard = options.shard,
              .shards = options.shards,
              .runtime = std::make_shared<Runtime>(
                  budget, options.memory != nullptr ? *options.memory : host(), options.recorder,
                  std::move(tuning))};
  if (options.share) apply(*options.share);
  context_.runtime->name_stages(*node_);
  input_ = std::make_unique<Input>(node_, context_);
}

void DatasetIterator::apply(const WorkerShare& share) {
  ensure(share.policy != AutoShardPolicy::Auto, "the policy of a share was not resolved");
  context_.share = share;
  context_.ordered = share.policy == AutoShardPolicy::Data;
  if (share.policy != AutoShardPolicy::File) return;
  require(context_.shards == 1,
          "[data] shard {} of {} of an iterator and the files of worker {} of {} exclude each "
          "other: give only one",
          context_.shard, context_.shards, share.worker, share.workers);
  context_.files = {.index = share.worker, .count = share.workers};
}

void DatasetIterator::start() {
  if (given_ > 0 || !may_start_early_throughout(*node_)) return;
  started_early_ = true;
  context_.runtime->recording = false;
  input_->start();
}

// For the report, a pass begins when the consumer requests the first element.
void DatasetIterator::asked() {
  if (!started_early_) return;
  started_early_ = false;
  began_ns_ = now_ns();
  context_.runtime->recording = true;
}

std::optional<Element> DatasetIterator::next() {
  asked();
  ConsumerWait waiting(*context_.runtime);
  std::optional<Element> element = with_memory([&] { return input_->next(); });
  if (element) ++given_;
  if (element && element->piece) piece_ = element->piece;
  return element;
}

std::optional<std::int64_t> DatasetIterator::next_into(std::span<Tensor> destination) {
  asked();
  ConsumerWait waiting(*context_.runtime);
  const std::optional<RowsWritten> written =
      with_memory([&] { return input_->next_into(destination); });
  if (!written) return std::nullopt;
  ++given_;
  piece_ = written->piece;
  return written->rows;
}

PositionWriter DatasetIterator::position() const {
  auto input = std::make_shared<PositionWriter>();
  input_->save(*input);
  return written(node_->signature(), context_.epoch, context_.own_shard(), division_of(context_),
                 std::move(input));
}

std::string DatasetIterator::save() const {
  return position().bytes();
}

IteratorState DatasetIterator::save_state() const {
  IteratorState state;
  state.bytes = position().bytes_beside(state.values);
  return state;
}

void DatasetIterator::restore(const std::string& position) {
  restore_state({.bytes = position, .values = {}});
}

void DatasetIterator::restore_state(const IteratorState& state) {
  RowReader rows(state.values);
  Saved saved(state.bytes, &rows);
  require(saved.signature == node_->signature(),
          "[data] the position was saved by the data set {} and does not apply to {}",
          saved.signature, node_->signature());
  const ShardIndex own = context_.own_shard();
  require(saved.shard == own.index && saved.shards == own.count,
          "[data] the position was saved by shard {} of {}, but this is shard {} of {}: reshard() "
          "turns the positions of all shards into new ones",
          saved.shard, saved.shards, own.index, own.count);
  require(saved.shards == 1 || saved.division == Division::Any ||
              saved.division == division_of(context_),
          "[data] one of the position, saved by shard {} of {}, and this iterator has a shard of "
          "the elements, the other one of the files: reshard() turns the positions of all shards "
          "into new ones",
          saved.shard, saved.shards);
  const Context there = context_.in_epoch(static_cast<std::uint64_t>(saved.epoch));
  auto input = std::make_unique<Input>(node_, there);
  input->restore(saved.input);
  saved.input.expect_end();
  input_ = std::move(input);
  context_ = there;
}

PipelineReport DatasetIterator::report() const {
  PipelineReport report = explain(*node_, *context_.runtime);
  report.seconds = static_cast<double>(now_ns() - began_ns_) * 1e-9;
  report.elements = given_;
  judge(report);
  return report;
}

std::vector<std::string> reshard(const std::vector<std::string>& positions, std::int64_t shards) {
  require(!positions.empty(), "[reshard] there are no positions to continue from");
  require(shards > 0, "[reshard] the number of shards must be at least 1, not {}", shards);
  const Saved first(positions.front());
  std::vector<std::string> former;
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const Saved saved(positions[i]);
    require(saved.signature == first.signature,
            "[reshard] position {} was saved by the data set {}, position 0 by {}", i,
            saved.signature, first.signature);
    require(saved.epoch == first.epoch,
            "[reshard] position {} is in epoch {}, position 0 in epoch {}: save all of them in the "
            "same epoch",
            i, saved.epoch, first.epoch);
    require(saved.shards == std::ssize(positions) && saved.shard == static_cast<std::int64_t>(i),
            "[reshard] position {} of {} was saved by shard {} of {}: give the positions of all "
            "shards, in order",
            i, positions.size(), saved.shard, saved.shards);
    require(saved.division == first.division,
            "[reshard] one of the positions {} and 0 was saved by a shard of the elements, the "
            "other one by a shard of the files: save all of them by one kind",
            i);
    former.emplace_back(saved.input_bytes);
  }
  auto state = std::make_shared<PositionWriter>();
  const bool files = first.division == Division::Files;
  Input::begin_rest(former, files ? FormerParts::Files : FormerParts::Shards, *state);
  auto input = std::make_shared<PositionWriter>();
  Input::save({.base = state, .skip = 0}, *input);
  std::vector<std::string> resharded;
  for (std::int64_t shard = 0; shard < shards; ++shard) {
    resharded.push_back(written(first.signature, static_cast<std::uint64_t>(first.epoch),
                                {.index = shard, .count = shards}, Division::Any, input)
                            .bytes());
  }
  return resharded;
}

}  // namespace lockstep
