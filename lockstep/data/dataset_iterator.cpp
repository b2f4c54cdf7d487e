#include "lockstep/data/dataset_iterator.h"

#include <algorithm>
#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/data/explain.h"
#include "lockstep/data/rest.h"
#include "lockstep/device/cpu/cpu_device.h"

namespace lockstep {
namespace {

constexpr std::string_view kFormat = "lockstep position 2";
constexpr std::int64_t kMostEpochs = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMostShards = 1 << 20;

// What a saved position is made of.
struct Saved {
  std::string_view signature;
  std::int64_t epoch = 0;
  std::int64_t shard = 0;
  std::int64_t shards = 1;
  std::string_view input;

  explicit Saved(std::string_view position) {
    PositionReader reader(position);
    require(reader.text() == kFormat, "[data] these bytes are no saved position of a data set");
    signature = reader.text();
    epoch = reader.count(kMostEpochs);
    shards = reader.count(kMostShards);
    shard = reader.count(shards);
    input = reader.text();
    reader.expect_end();
  }
};

std::string written(std::string_view signature, const Context& context, std::string_view input) {
  PositionWriter writer;
  writer.text(kFormat);
  writer.text(signature);
  writer.word(context.epoch);
  writer.word(static_cast<std::uint64_t>(context.shards));
  writer.word(static_cast<std::uint64_t>(context.shard));
  writer.text(input);
  return writer.bytes();
}

// Adds up how long the consumer stood in a call.
class ConsumerWait {
 public:
  explicit ConsumerWait(Runtime& runtime) : runtime_(runtime), begin_ns_(now_ns()) {}
  ~ConsumerWait() { runtime_.consumer_wait_ns += now_ns() - begin_ns_; }
  ConsumerWait(const ConsumerWait&) = delete;
  ConsumerWait& operator=(const ConsumerWait&) = delete;

 private:
  Runtime& runtime_;
  std::int64_t begin_ns_;
};

}  // namespace

DatasetIterator::DatasetIterator(NodePtr node, Budget budget, const IteratorOptions& options)
    : node_(std::move(node)), began_ns_(now_ns()) {
  require(options.epoch <= static_cast<std::uint64_t>(kMostEpochs),
          "[data] epoch {} is more than {}", options.epoch, kMostEpochs);
  require(options.shards > 0 && options.shard >= 0 && options.shard < options.shards,
          "[data] there is no shard {} of {}: they count from 0", options.shard, options.shards);
  context_ = {.epoch = options.epoch,
              .shard = options.shard,
              .shards = options.shards,
              .runtime = std::make_shared<Runtime>(
                  budget, options.memory != nullptr ? *options.memory : host(), options.recorder)};
  input_ = std::make_unique<Input>(node_, context_);
}

std::optional<Element> DatasetIterator::next() {
  ConsumerWait waiting(*context_.runtime);
  std::optional<Element> element = input_->next();
  if (element) ++given_;
  return element;
}

std::optional<std::int64_t> DatasetIterator::next_into(std::span<Tensor> destination) {
  ConsumerWait waiting(*context_.runtime);
  const std::optional<std::int64_t> rows = input_->next_into(destination);
  if (rows) ++given_;
  return rows;
}

std::string DatasetIterator::save() const {
  PositionWriter input;
  input_->save(input);
  return written(node_->signature(), context_, input.bytes());
}

void DatasetIterator::restore(const std::string& position) {
  const Saved saved(position);
  require(saved.signature == node_->signature(),
          "[data] the position was saved by the data set {} and means nothing to {}",
          saved.signature, node_->signature());
  require(saved.shard == context_.shard && saved.shards == context_.shards,
          "[data] the position is that of shard {} of {}, and this is shard {} of {}: reshard() "
          "makes new positions of those of all shards",
          saved.shard, saved.shards, context_.shard, context_.shards);
  const Context there = context_.in_epoch(static_cast<std::uint64_t>(saved.epoch));
  auto input = std::make_unique<Input>(node_, there);
  PositionReader reader(saved.input);
  input->restore(reader);
  reader.expect_end();
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
  require(!positions.empty(), "[reshard] there are no positions to go on from");
  require(shards > 0, "[reshard] {} shards cannot be; ask for at least 1", shards);
  const Saved first(positions.front());
  std::vector<std::string> former;
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const Saved saved(positions[i]);
    require(saved.signature == first.signature,
            "[reshard] position {} was saved by the data set {}, position 0 by {}", i,
            saved.signature, first.signature);
    require(saved.epoch == first.epoch,
            "[reshard] position {} is in epoch {}, position 0 in epoch {}: save them all in one", i,
            saved.epoch, first.epoch);
    require(saved.shards == std::ssize(positions) && saved.shard == static_cast<std::int64_t>(i),
            "[reshard] position {} of {} was saved by shard {} of {}: give the positions of all "
            "shards, in order",
            i, positions.size(), saved.shard, saved.shards);
    former.emplace_back(saved.input);
  }
  auto state = std::make_shared<PositionWriter>();
  Input::begin_rest(former, *state);
  PositionWriter input;
  Input::save({.base = state, .skip = 0}, input);
  std::vector<std::string> resharded;
  for (std::int64_t shard = 0; shard < shards; ++shard) {
    const Context context{.epoch = static_cast<std::uint64_t>(first.epoch),
                          .shard = shard,
                          .shards = shards,
                          .runtime = nullptr};
    resharded.push_back(written(first.signature, context, input.bytes()));
  }
  return resharded;
}

}  // namespace lockstep
