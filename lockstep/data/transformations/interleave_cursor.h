// The elements of several data sets in turn; interleave_cursor.cpp explains how.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "lockstep/data/pipeline/node.h"
#include "lockstep/data/pipeline/tuner.h"

namespace lockstep {

// What all cursors of an interleave share.
struct Interleaving {
  DatasetFunction function;
  InterleaveOptions options;
  // The spec of the elements, and the first data set that the function made, which stands for all
  // of them in reports.
  std::vector<ElementSpec> spec;
  NodePtr model;
};

class InterleaveCursor final : public Cursor {
 public:
  InterleaveCursor(NodePtr input, const Context& context,
                   std::shared_ptr<const Interleaving> interleaving, Stage& stage);
  ~InterleaveCursor() override;

  std::optional<Element> next() override;
  std::int64_t skip(std::int64_t count) override;
  void save(PositionWriter& state) const override;
  void restore(PositionReader& state) override;
  std::int64_t state_size() const override;

 private:
  struct Ready {
    Element element;
    Position after;
    std::size_t reserved = 0;
  };

  // A data set that was opened, or the error that opening it caused.
  struct Inner {
    ~Inner();

    Element outer;    // the element it was made from
    Position before;  // of the outer input, before that element
    NodePtr node;
    Runtime* runtime = nullptr;
    std::unique_ptr<Input> input;
    std::optional<Position> after;  // after the last element returned; only the consumer uses it

    // Guarded by the cursor's mutex.
    std::deque<Ready> ready;
    bool busy = false;  // a thread is reading its input
    bool ended = false;
    std::exception_ptr error;
  };

  bool ahead() const { return interleaving_->options.parallel != 1; }

  // The next element of the data set whose turn it is.
  std::optional<Element> next_in_turn();
  // The next element of any data set that has one ready.
  std::optional<Element> next_ready();
  void advance();
  void close(std::size_t slot);

  std::unique_ptr<Inner> pull();
  std::unique_ptr<Inner> make(Element outer, Position before) const;
  void build(Inner& inner) const;
  std::unique_ptr<Inner> next_inner();
  void look_ahead();

  // The consumer's next element of a data set; nullopt at its end.
  std::optional<Element> take(Inner& inner);
  Element hand_out(Inner& inner, Ready ready);
  // Makes one element; call with the lock, which it releases meanwhile.
  std::optional<Ready> produce(Inner& inner, std::unique_lock<std::mutex>& lock);

  // Runs the thread tuner; with more threads, more data sets are opened ahead.
  void tune();
  void request_threads();
  void work(Track* track);
  Inner* emptiest_in_turn();
  int wanting() const;
  bool wants_more(const Inner& inner) const;

  std::shared_ptr<const Interleaving> interleaving_;
  Context context_;
  Stage& stage_;
  const char* span_name_;
  std::size_t capacity_;  // of the queue of each data set
  std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();

  bool in_order_;
  std::exception_ptr error_;
  std::exception_ptr outer_error_;  // thrown while looking ahead
  bool started_ = false;            // other threads may have made elements
  Input outer_;

  // Guards the members below; only the consumer changes the first four.
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Inner>> slots_;
  std::deque<std::unique_ptr<Inner>> opened_ahead_;
  std::size_t slot_ = 0;      // whose turn it is
  std::int64_t in_turn_ = 0;  // elements returned in this turn
  std::condition_variable changed_;
  ThreadTuner tuner_;
  int workers_ = 0;  // requested or running
  bool look_again_ = true;
  bool short_of_memory_ = false;
  bool stopping_ = false;
};

}  // namespace lockstep
