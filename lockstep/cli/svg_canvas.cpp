// An SVG picture.
#include <fmt/format.h>

#include "lockstep/cli/canvas.h"

namespace lockstep::cli {
namespace {

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      default:
        out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

std::string hex(Colour colour) {
  return fmt::format("#{:02x}{:02x}{:02x}", colour[0], colour[1], colour[2]);
}

class SvgCanvas final : public Canvas {
 public:
  SvgCanvas(int width, int height) : width_(width), height_(height) {}

  void line(const std::vector<Point>& points, Colour colour, double width) override {
    body_ += "<polyline points=\"";
    for (const Point& point : points) body_ += fmt::format("{:.1f},{:.1f} ", point.x, point.y);
    body_ += fmt::format(
        "\" fill=\"none\" stroke=\"{}\" stroke-width=\"{:g}\" stroke-linejoin=\"round\"/>\n",
        hex(colour), width);
  }
  void disc(Point centre, double radius, Colour colour) override {
    body_ += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:g}\" fill=\"{}\"/>\n", centre.x,
                         centre.y, radius, hex(colour));
  }
  void text(Point at, const std::string& text, double size, Anchor anchor, Colour colour) override {
    const char* how = anchor == Anchor::Left     ? "start"
                      : anchor == Anchor::Middle ? "middle"
                                                 : "end";
    // Capitals are about 0.7 of a font's size.
    body_ += fmt::format(
        "<text x=\"{:.1f}\" y=\"{:.1f}\" font-family=\"sans-serif\" font-size=\"{:.1f}\" "
        "text-anchor=\"{}\" fill=\"{}\">{}</text>\n",
        at.x, at.y, size / 0.7, how, hex(colour), escaped(text));
  }
  std::string encoded() const override {
    return fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" "
        "viewBox=\"0 0 {0} {1}\">\n<rect width=\"{0}\" height=\"{1}\" "
        "fill=\"white\"/>\n{2}</svg>\n",
        width_, height_, body_);
  }

 private:
  int width_;
  int height_;
  std::string body_;
};

}  // namespace

std::unique_ptr<Canvas> svg_canvas(int width, int height) {
  return std::make_unique<SvgCanvas>(width, height);
}

}  // namespace lockstep::cli
