// The commands that use a trained run (evaluate, predict, plot), and those that choose its recipe
// (find-lr and the flags of train).
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "cli/expect.h"
#include "cli/idx_files.h"
#include "data/image_files.h"

namespace lockstep {
namespace {

void write(const std::filesystem::path& file, const Bytes& bytes) {
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

// Uniformly grey pictures in two classes, "dark" and "light".
void write_greys(const std::filesystem::path& folder, int of_each) {
  for (int i = 0; i < of_each; ++i) {
    const auto grey = [&](int shade) {
      return make_png(8, 8, {},
                      std::vector<std::uint8_t>(8 * 8 * 3, static_cast<std::uint8_t>(shade)));
    };
    write(folder / "dark" / (std::to_string(i) + ".png"), grey(10 + i));
    write(folder / "light" / (std::to_string(i) + ".png"), grey(230 + i));
  }
}

// Trains a run that tells dark pictures from light ones.
void train_greys(const Program& program, const std::string& flags = "") {
  write_greys(program.folder() / "greys", 20);
  const Outcome outcome = program.run(
      "train --model mlp --data greys --epochs 8 --batch 8 --learning-rate 0.01 --run-dir run " +
      flags);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
}

TEST(Evaluate, GivesTheValidationResultsOfTheRun) {
  const Program program;
  train_greys(program, "--json result.json");
  const Outcome outcome = program.run("evaluate run --json -");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto last = parsed(program, "result.json").at("epochs").back();
  EXPECT_NEAR(outcome.json().at("loss").get<double>(), last.at("val_loss").get<double>(), 1e-6);
  EXPECT_EQ(outcome.json().at("metrics").at("accuracy"), last.at("val_metrics").at("accuracy"));
  EXPECT_EQ(outcome.json().at("samples"), 4);
  EXPECT_NE(program.run("evaluate run").out.find("accuracy 1.0000"), std::string::npos);
}

TEST(Evaluate, UsesAllOfAnotherFolderWithTheClassesOfTheRun) {
  const Program program;
  train_greys(program);
  write_greys(program.folder() / "new", 3);
  const Outcome outcome = program.run("evaluate run --data new --json -");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.json().at("samples"), 6);
  EXPECT_EQ(outcome.json().at("metrics").at("accuracy"), 1.0);
  expect_wrong_use(program, "evaluate run --data nowhere", "nowhere");
}

TEST(Predict, NamesTheClassesOfPicturesAndFolders) {
  const Program program;
  train_greys(program);
  const Outcome outcome = program.run("predict run greys/dark/3.png greys/light --top 5 --json -");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto predictions = outcome.json().at("predictions");
  ASSERT_EQ(predictions.size(), 21u);
  EXPECT_EQ(predictions[0].at("input"), "greys/dark/3.png");
  EXPECT_EQ(predictions[0].at("classes").at(0).at("name"), "dark");
  double sum = 0;
  for (const auto& each : predictions[0].at("classes")) sum += each.at("probability").get<double>();
  EXPECT_NEAR(sum, 1.0, 1e-6);  // all the classes there are
  for (std::size_t i = 1; i < predictions.size(); ++i) {
    EXPECT_EQ(predictions[i].at("classes").at(0).at("name"), "light");
  }
  const std::string text = program.run("predict run greys/dark/3.png --top 1").out;
  EXPECT_TRUE(text.starts_with("greys/dark/3.png:  dark ")) << text;
}

TEST(Predict, SkipsDamagedFilesInAFolderAndRefusesOneThatIsNamed) {
  const Program program;
  train_greys(program);
  write_greys(program.folder() / "mixed", 1);
  std::ofstream(program.folder() / "mixed/dark/bad.png") << "no picture";
  const Outcome outcome = program.run("predict run mixed --json -");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.json().at("predictions").size(), 2u);
  EXPECT_EQ(outcome.json().at("unread").at(0), "mixed/dark/bad.png");
  expect_wrong_use(program, "predict run mixed/dark/bad.png", "bad.png");
  EXPECT_NE(outcome.err.find("skipped 1 of 3 files"), std::string::npos) << outcome.err;
  EXPECT_EQ(outcome.error_lines(), 1u) << outcome.err;
  // A file named on the command line must be readable, however many others there are.
  expect_wrong_use(program, "predict run greys mixed/dark/bad.png", "bad.png");
  std::filesystem::create_directory(program.folder() / "damaged");
  std::ofstream(program.folder() / "damaged/bad.png") << "no picture";
  const Outcome together = program.run("predict run damaged greys/dark/3.png --json -");
  ASSERT_EQ(together.code, 0) << together.err;
  EXPECT_EQ(together.json().at("predictions").size(), 1u);
  expect_wrong_use(program, "predict run damaged", "none of the 1 files");
  expect_wrong_use(program, "predict run absent.png", "absent.png");
  expect_wrong_use(program, "predict nowhere greys/dark/3.png", "nowhere");
}

TEST(Predict, ARecordWithoutImageSettingsIsNamed) {
  const Program program;
  train_greys(program);
  auto record = parsed(program, "run/run.json");
  record["data"].erase("image");
  std::ofstream(program.folder() / "run/run.json") << record.dump();
  expect_wrong_use(program, "predict run greys/dark/3.png", "run/run.json: the record lacks image");
}

TEST(Plot, DrawsARunInTheTerminalAndAsPictures) {
  const Program program;
  train_greys(program);
  const Outcome text = program.run("plot run");
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_NE(text.out.find("val_loss"), std::string::npos);
  EXPECT_NE(text.out.find("accuracy"), std::string::npos);
  for (const char* file : {"run.svg", "run.png"}) {
    EXPECT_EQ(program.run("plot run --output " + std::string(file)).code, 0);
  }
  EXPECT_NE(program.text("run.svg").find("<svg"), std::string::npos);
  EXPECT_NE(program.text("run.svg").find("val_accuracy"), std::string::npos);
  EXPECT_EQ(program.text("run.png").substr(1, 3), "PNG");
  const auto json = program.run("plot run --metric loss --json -").json();
  ASSERT_EQ(json.at("series").size(), 2u);  // loss and val_loss
  EXPECT_EQ(json.at("series").at(0).at("epochs").size(), 8u);
  expect_wrong_use(program, "plot nowhere", "nowhere");
  expect_wrong_use(program, "plot run --metric f1", "f1");
  expect_wrong_use(program, "plot run --output run.gif", ".svg or .png");
}

TEST(FindLr, SuggestsARateAtWhichTheModelLearns) {
  const Program program;
  write_greys(program.folder() / "greys", 20);
  const Outcome found =
      program.run("find-lr --model mlp --data greys --batch 8 --steps 100 --json -");
  ASSERT_EQ(found.code, 0) << found.err;
  const double rate = found.json().at("suggested").get<double>();
  EXPECT_GT(rate, 1e-5);
  EXPECT_LT(rate, 1.0);
  EXPECT_EQ(found.json().at("rates").size(), found.json().at("losses").size());
  const Outcome trained =
      program.run("train --model mlp --data greys --batch 8 --epochs 8 --json - --learning-rate " +
                  std::to_string(rate));
  ASSERT_EQ(trained.code, 0) << trained.err;
  const auto epochs = trained.json().at("epochs");
  EXPECT_LT(epochs.back().at("loss").get<double>(), 0.5 * epochs.front().at("loss").get<double>());
  expect_wrong_use(program, "find-lr --model mlp --data greys --from 1 --to 0.1", "--from 1");
}

TEST(Recipe, ResNetsGetTheUsualOneAndPrintIt) {
  const Program program;
  write_greys(program.folder() / "greys", 20);
  const Outcome outcome = program.run(
      "train --model resnet18 --data greys --image-size 16 --batch 8 --epochs 2 --run-dir run");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  for (const char* part :
       {"sgd at 0.003125 (0.1 per 256 samples)", "warm-up over the first", "cosine decay",
        "weight decay 0.001 except on norms and biases", "residual branches start at zero"}) {
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part << "\n" << outcome.out;
  }
  EXPECT_EQ(parsed(program, "run/run.json").at("data").at("sample"),
            nlohmann::json::array({16, 16, 3}));
}

TEST(Recipe, EveryPartOfItCanBeSet) {
  const Program program;
  const std::string common = "train --model mlp --data synthetic --batch 8 --steps 4 --epochs 3 ";
  for (const char* schedule : {"constant", "cosine", "linear", "exponential", "step"}) {
    const Outcome outcome = program.run(common + "--learning-rate 0.01 --warm-up-epochs 0.5 " +
                                        "--weight-decay 0.1 --json - --schedule " + schedule);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_NE(outcome.err.find("warm-up over the first 2 steps"), std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find("weight decay 0.1"), std::string::npos) << outcome.err;
  }
  expect_wrong_use(program, common + "--schedule zigzag", "zigzag");
  expect_wrong_use(program, common + "--augment zoom", "zoom");
  expect_wrong_use(program, common + "--image-size 0", "--image-size 0");
  expect_wrong_use(program, common + "--checkpoint-every soon", "soon");
}

TEST(Recipe, TheBestEpochIsKeptAndTrainingStopsWhenNoneIsBetter) {
  const Program program;
  write_greys(program.folder() / "greys", 20);
  // A learning rate of 0 never improves: the first epoch is the best, and two more follow.
  const Outcome outcome = program.run(
      "train --model mlp --data greys --batch 8 --epochs 9 --learning-rate 0 --save-best "
      "--early-stopping 2 --run-dir run --json -");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.json().at("epochs").size(), 3u);
  EXPECT_TRUE(std::filesystem::exists(program.folder() / "run/best.safetensors"));
  EXPECT_EQ(program.run("evaluate run --json -").json().at("checkpoint"), "run/best.safetensors");
}

TEST(Augment, VariesTrainingSamplesAndRepeatsWithTheSeed) {
  const Program program;
  write_idx(program.folder() / "digits", {.train = 40, .test = 8, .shade = 200});
  const auto loss = [&](const std::string& flags) {
    const Outcome outcome = program.run(
        "train --model mlp --data digits --epochs 1 --batch 8 --seed 2 --json - " + flags);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.code == 0 ? outcome.json().at("epochs").at(0).at("loss").get<double>() : NAN;
  };
  const double plain = loss("");
  EXPECT_EQ(loss("--augment none"), plain);
  EXPECT_NE(loss("--augment flip"), plain);
  EXPECT_NE(loss("--augment crop"), plain);
  EXPECT_EQ(loss("--augment crop"), loss("--augment crop"));
  expect_wrong_use(program, "train --model mlp --data digits --augment strong", "strong");
}

}  // namespace
}  // namespace lockstep
