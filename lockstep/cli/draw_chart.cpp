// Draws a chart on a canvas and writes it to a file.
#include <fmt/format.h>

#include <cmath>
#include <fstream>

#include "lockstep/base/error.h"
#include "lockstep/cli/canvas.h"
#include "lockstep/cli/chart.h"

namespace lockstep::cli {
namespace {

constexpr int kWidth = 900;
constexpr int kPanelHeight = 300;
constexpr double kLeft = 80;
constexpr double kRight = 20;
constexpr double kTop = 40;
constexpr double kBottom = 46;
constexpr double kTextSize = 9;
constexpr int kTicks = 6;
constexpr std::size_t kMarked = 60;  // lines of at most this many points mark each with a dot
constexpr Colour kInk = {40, 40, 40};
constexpr Colour kGrid = {225, 225, 225};
constexpr Colour kLines[] = {{32, 102, 168}, {217, 112, 31}, {46, 139, 87},
                             {160, 60, 140}, {150, 110, 50}, {90, 90, 90}};

class PanelDrawing {
 public:
  PanelDrawing(Canvas& canvas, const Panel& panel, double top)
      : canvas_(canvas),
        panel_(panel),
        x_(x_axis(panel, kTicks)),
        y_(y_axis(panel, kTicks)),
        top_(top + kTop),
        bottom_(top + kPanelHeight - kBottom) {}

  void draw() {
    grid();
    canvas_.text({kLeft, top_ - 14}, panel_.title, kTextSize + 2, Anchor::Left, kInk);
    double legend = kWidth - kRight;
    for (std::size_t i = panel_.series.size(); i-- > 0;) {
      const Colour colour = kLines[i % std::size(kLines)];
      lines(panel_.series[i], colour);
      canvas_.text({legend, top_ - 14}, panel_.series[i].name, kTextSize, Anchor::Right, colour);
      legend -= 9.0 * static_cast<double>(panel_.series[i].name.size()) + 24;
    }
  }

 private:
  double across(double place) const { return kLeft + place * (kWidth - kLeft - kRight); }
  double down(double place) const { return bottom_ - place * (bottom_ - top_); }

  void grid() {
    for (const double tick : y_.ticks) {
      const double y = down((tick - y_.low) / (y_.high - y_.low));
      canvas_.line({{across(0), y}, {across(1), y}}, kGrid, 1);
      canvas_.text({across(0) - 8, y + kTextSize / 2}, tick_text(y_, tick), kTextSize,
                   Anchor::Right, kInk);
    }
    for (const double tick : x_.ticks) {
      const double x = across((tick - x_.low) / (x_.high - x_.low));
      canvas_.line({{x, down(0)}, {x, down(0) + 4}}, kInk, 1);
      canvas_.text({x, bottom_ + 18}, tick_text(x_, tick), kTextSize, Anchor::Middle, kInk);
    }
    canvas_.line({{across(0), down(1)}, {across(0), down(0)}, {across(1), down(0)}}, kInk, 1);
    canvas_.text({across(0.5), bottom_ + 36}, panel_.x_label, kTextSize, Anchor::Middle, kInk);
  }

  void lines(const Series& series, Colour colour) {
    std::vector<Point> polyline;
    for (std::size_t i = 0; i < series.y.size(); ++i) {
      if (!std::isfinite(series.y[i])) {
        canvas_.line(polyline, colour, 2);
        polyline.clear();
        continue;
      }
      polyline.push_back({across(x_.place(series.x[i])), down(y_.place(series.y[i]))});
      if (series.y.size() <= kMarked) canvas_.disc(polyline.back(), 3, colour);
    }
    canvas_.line(polyline, colour, 2);
  }

  Canvas& canvas_;
  const Panel& panel_;
  Axis x_;
  Axis y_;
  double top_;
  double bottom_;
};

}  // namespace

void write_chart(const std::vector<Panel>& panels, const std::filesystem::path& file) {
  const std::string kind = file.extension().string();
  require(kind == ".svg" || kind == ".png", "{}: the name of a picture must end in .svg or .png",
          file.string());
  const int height = kPanelHeight * static_cast<int>(panels.size());
  const auto canvas = kind == ".svg" ? svg_canvas(kWidth, height) : png_canvas(kWidth, height);
  double top = 0;
  for (const Panel& panel : panels) {
    PanelDrawing(*canvas, panel, top).draw();
    top += kPanelHeight;
  }
  std::ofstream stream(file, std::ios::binary);
  const std::string bytes = canvas->encoded();
  stream.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  stream.close();
  if (!stream) fail<DataError>("{}: the picture cannot be written", file.string());
}

}  // namespace lockstep::cli
