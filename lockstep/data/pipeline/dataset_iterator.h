// The iterator of a data set: the cursor of the last stage, the runtime that all stages share, and
// the format of saved positions.
#pragma once

#include <memory>
#include <string>

#include "lockstep/data/dataset.h"
#include "lockstep/data/pipeline/node.h"

namespace lockstep {

class DatasetIterator final : public Iterator {
 public:
  DatasetIterator(NodePtr node, Budget budget, std::shared_ptr<PipelineTuning> tuning,
                  const IteratorOptions& options);
  ~DatasetIterator() override { context_.runtime->ending = true; }

  std::optional<Element> next() override;
  std::optional<std::int64_t> next_into(std::span<Tensor> destination) override;
  std::string save() const override;
  void restore(const std::string& position) override;
  IteratorState save_state() const override;
  void restore_state(const IteratorState& state) override;
  PipelineReport report() const override;
  void start() override;
  bool all_made() const override { return input_->all_made(); }
  std::optional<BatchPiece> piece() const override { return piece_; }

 private:
  void apply(const WorkerShare& share);
  PositionWriter position() const;

  NodePtr node_;
  Context context_;
  std::unique_ptr<Input> input_;
  void asked();

  std::int64_t began_ns_;
  bool started_early_ = false;  // and no element requested since
  std::int64_t given_ = 0;
  std::optional<BatchPiece> piece_;  // of the last element returned
};

}  // namespace lockstep
