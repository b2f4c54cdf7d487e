// The iterator of a data set: its outermost cursor, the runtime that all its stages share, and the
// form in which positions are saved.
#pragma once

#include <memory>
#include <string>

#include "lockstep/data/dataset.h"
#include "lockstep/data/node.h"

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

 private:
  PositionWriter position() const;

  NodePtr node_;
  Context context_;
  std::unique_ptr<Input> input_;
  void asked();

  std::int64_t began_ns_;
  bool started_early_ = false;  // and not asked since
  std::int64_t given_ = 0;
};

}  // namespace lockstep
