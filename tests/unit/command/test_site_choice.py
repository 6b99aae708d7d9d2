# SPDX-License-Identifier: Apache-2.0
"""Which site a command is about, from any directory."""

from __future__ import annotations

import pytest

from trainyard import site_choice
from trainyard.product import Product
from trainyard.site_choice import SiteError


@pytest.fixture
def checkout(tmp_path):
    """A product with the sample and the demo site."""
    for name in ("local", "sample"):
        (tmp_path / "product" / "inventory" / name).mkdir(parents=True)
    return Product(tmp_path / "product", checkout=True)


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Return a function that makes sites of a project and goes into a directory of it."""

    def make(*names):
        for name in names:
            (tmp_path / "mine" / "inventory" / name).mkdir(parents=True)
        (tmp_path / "mine" / "jobs").mkdir(parents=True, exist_ok=True)
        monkeypatch.chdir(tmp_path / "mine" / "jobs")
        return tmp_path / "mine"

    return make


def test_the_only_site_above_is_taken(checkout, own):
    project = own("lab")
    site = site_choice.choose_site(None, {}, checkout)
    assert (site.path, site.project) == (project / "inventory" / "lab", project)


def test_one_of_several_has_to_be_named(checkout, own):
    project = own("lab", "cloud")
    with pytest.raises(SiteError, match="cloud, lab"):
        site_choice.choose_site(None, {}, checkout)
    for given, environment in (("cloud", {}), (None, {"TRAINYARD_SITE": "cloud"})):
        site = site_choice.choose_site(given, environment, checkout)
        assert site.path == project / "inventory" / "cloud"


def test_without_a_site_of_ones_own_it_is_the_demo(checkout, own):
    own()
    site = site_choice.choose_site(None, {}, checkout)
    assert (site.path, site.project) == (checkout.root / "inventory" / "local", None)


def test_the_users_inventory_stays(checkout, own):
    project = own("lab", "cloud")
    path = str(project / "inventory" / "lab")
    site = site_choice.choose_site(None, {"ANSIBLE_INVENTORY": path}, checkout)
    assert (site.inventory, site.project) == (path, project)
    given = site_choice.choose_site("cloud", {"ANSIBLE_INVENTORY": path}, checkout)
    assert given.path == project / "inventory" / "cloud"


def test_runs_of_a_site_in_the_checkout_stay_there(checkout, own):
    own()
    (checkout.root / "inventory" / "lab").mkdir()
    assert site_choice.choose_site("lab", {}, checkout).project is None


def test_an_installed_product_writes_nothing_below_itself(tmp_path, own):
    project = own()
    installed = Product(tmp_path / "product", checkout=False)
    (project / "hosts.yml").touch()
    site = site_choice.choose_site(str(project / "hosts.yml"), {}, installed)
    assert site.project == project / "jobs"
    with pytest.raises(SiteError):
        site_choice.choose_site(None, {}, installed)


def test_a_name_that_is_none_shows_a_near_one(checkout, own):
    own("cluster")
    with pytest.raises(SiteError, match="did you mean 'cluster'"):
        site_choice.choose_site("clutser", {}, checkout)
    with pytest.raises(SiteError):
        site_choice.choose_site("sample", {}, checkout)
